//! Named slots that all hold the same kind of thing.

/// The slots of `S`, filled with `T`.
pub type Of<S, T> = <S as Slots>::Of<T>;

/// A set of names, each of which holds one `T`: `Gates<()>` names the slots, `Gates<T>` fills them with shapes, host
/// arrays, tensors or gradients. [`slots!`](crate::slots!) writes the implementation.
pub trait Slots: 'static {
    /// The same slots with `T` in each.
    type Of<T>;

    /// Names, in the order in which slots are listed everywhere.
    const NAMES: &'static [&'static str];

    /// Makes each slot from its name, in order.
    ///
    /// # Errors
    /// The first error of `make`.
    fn try_build<T, E>(make: impl FnMut(&'static str) -> Result<T, E>) -> Result<Self::Of<T>, E>;

    /// The contents in order.
    fn into_vec<T>(slots: Self::Of<T>) -> Vec<T>;

    /// References to the contents.
    fn as_ref<T>(slots: &Self::Of<T>) -> Self::Of<&T>;

    /// Makes each slot from its name, in order.
    fn build<T>(mut make: impl FnMut(&'static str) -> T) -> Self::Of<T> {
        match Self::try_build(|name| Ok::<T, std::convert::Infallible>(make(name))) {
            Ok(slots) => slots,
            Err(never) => match never {},
        }
    }

    /// Names and references to the contents, in order.
    fn list<T>(slots: &Self::Of<T>) -> Vec<(&'static str, &T)>;

    /// Applies `f` to each slot, in order.
    ///
    /// # Errors
    /// The first error of `f`.
    fn try_map<T, U, E>(slots: Self::Of<T>, f: impl FnMut(&'static str, T) -> Result<U, E>) -> Result<Self::Of<U>, E>;

    /// Applies `f` to each slot, in order.
    fn map<T, U>(slots: Self::Of<T>, f: impl FnMut(&'static str, T) -> U) -> Self::Of<U>;

    /// What `a` and `b` have in each slot, as pairs.
    fn zip<T, U>(a: Self::Of<T>, b: Self::Of<U>) -> Self::Of<(T, U)>;
}

/// Declares a struct of slots: `slots! { /// docs pub struct State { /// docs m, /// docs s } }`.
///
/// Gates say of each slot what it is, as a [`GateKind`](crate::GateKind): `/// docs log_a: Retention, /// docs theta: Step`.
/// Then the struct is [`GateSlots`](crate::GateSlots) as well.
#[macro_export]
macro_rules! slots {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* $field:ident : $kind:ident),* $(,)? }) => {
        $crate::slots! { $(#[$meta])* pub struct $name { $($(#[$field_meta])* $field),* } }

        impl $crate::GateSlots for $name<()> {
            const KINDS: &'static [$crate::GateKind] = &[$($crate::GateKind::$kind),*];
        }
    };
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* $field:ident),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name<T> { $($(#[$field_meta])* pub $field: T),* }

        impl $crate::Slots for $name<()> {
            type Of<T> = $name<T>;
            const NAMES: &'static [&'static str] = &[$(stringify!($field)),*];

            fn try_build<T, E>(
                mut make: impl FnMut(&'static str) -> ::std::result::Result<T, E>,
            ) -> ::std::result::Result<$name<T>, E> {
                Ok($name { $($field: make(stringify!($field))?),* })
            }

            fn into_vec<T>(slots: $name<T>) -> Vec<T> {
                vec![$(slots.$field),*]
            }

            fn as_ref<T>(slots: &$name<T>) -> $name<&T> {
                $name { $($field: &slots.$field),* }
            }

            fn list<T>(slots: &$name<T>) -> Vec<(&'static str, &T)> {
                vec![$((stringify!($field), &slots.$field)),*]
            }

            fn try_map<T, U, E>(
                slots: $name<T>,
                mut f: impl FnMut(&'static str, T) -> ::std::result::Result<U, E>,
            ) -> ::std::result::Result<$name<U>, E> {
                Ok($name { $($field: f(stringify!($field), slots.$field)?),* })
            }

            fn map<T, U>(slots: $name<T>, mut f: impl FnMut(&'static str, T) -> U) -> $name<U> {
                $name { $($field: f(stringify!($field), slots.$field)),* }
            }

            fn zip<T, U>(a: $name<T>, b: $name<U>) -> $name<(T, U)> {
                $name { $($field: (a.$field, b.$field)),* }
            }
        }
    };
}

/// No slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoSlots;

impl Slots for NoSlots {
    type Of<T> = Self;
    const NAMES: &'static [&'static str] = &[];

    fn try_build<T, E>(_: impl FnMut(&'static str) -> Result<T, E>) -> Result<Self, E> {
        Ok(Self)
    }

    fn into_vec<T>(_: Self) -> Vec<T> {
        Vec::new()
    }

    fn as_ref<T>(_: &Self) -> Self {
        Self
    }

    fn list<T>(_: &Self) -> Vec<(&'static str, &T)> {
        Vec::new()
    }

    fn try_map<T, U, E>(_: Self, _: impl FnMut(&'static str, T) -> Result<U, E>) -> Result<Self, E> {
        Ok(Self)
    }

    fn map<T, U>(_: Self, _: impl FnMut(&'static str, T) -> U) -> Self {
        Self
    }

    fn zip<T, U>(_: Self, _: Self) -> Self {
        Self
    }
}

#[cfg(test)]
mod tests {
    use crate::{DType, Dims, Inputs, Outputs, rules::Titans};
    use std::convert::Infallible;

    /// Every slot of a call with its place in the list.
    fn inputs() -> Inputs<Titans, usize> {
        let mut places = 0..;
        let Ok(inputs) = Inputs::try_build(Titans::default(), &Dims::new(1, 1, 1, 1, 1), DType::F32, |_, _| {
            Ok::<_, Infallible>(places.next().unwrap_or_default())
        });
        inputs
    }

    #[test]
    fn slots_meet_their_like() {
        let inputs = inputs();
        let named = inputs.as_ref().map(|slot, &place| (slot, place));
        let both = inputs.as_ref().zip(named).map(|slot, (&place, (name, again))| (slot == name, place == again));
        let expected: Vec<_> = inputs.list().into_iter().map(|(slot, _)| (slot, &(true, true))).collect();
        assert_eq!(both.list(), expected);
        // `inputs` is still there, its slots in order.
        assert_eq!(inputs.list().into_iter().map(|(_, &place)| place).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());

        let outputs = Outputs::<Titans, _> { out: inputs.q, state: inputs.state };
        let doubled = outputs.as_ref().map(|_, place| 2 * place);
        let pairs = outputs.zip(doubled).map(|_, (place, double)| 2 * place == double);
        assert_eq!(pairs.list(), [("out", &true), ("m", &true), ("s", &true)]);
    }
}
