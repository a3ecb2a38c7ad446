//! What kernels are told beside their arrays: structures that Rust defines, and whose WGSL is made from that.
//!
//! [`parameters!`] writes a structure and its text, [`Parameters::WGSL`], which is one of the texts that a kernel is put together
//! from ([`WgslSource::parts`](crate::launch::WgslSource::parts)). A field has the same name and type on both sides, since there
//! is one definition. A test compares where naga and Rust put it.

/// A structure with its text.
pub(crate) trait Parameters: bytemuck::Pod {
    /// `struct Name { .. }`.
    const WGSL: &'static str;
}

/// Vectors and arrays under the names that WGSL has for them, so that a type is the same text in both languages.
#[allow(non_camel_case_types)]
pub(crate) type vec2<T> = [T; 2];
#[allow(non_camel_case_types)]
pub(crate) type vec4<T> = [T; 4];
#[allow(non_camel_case_types)]
pub(crate) type array<T, const N: usize> = [T; N];

/// Defines structures of parameters: `parameters! { struct SumPartsArgs { count: u32, number: u32 } }`.
///
/// Types are `u32`, `i32`, `f32`, [`vec2`], [`vec4`], [`array`] and other such structures. WGSL begins a vector of four at a
/// multiple of 16 bytes, and one of two at a multiple of 8; fields are in an order in which Rust does so too.
macro_rules! parameters {
    ($( $(#[$of:meta])* $vis:vis struct $name:ident {
        $( $(#[$of_field:meta])* $vis_field:vis $field:ident : $type:ty ),* $(,)?
    } )*) => { $(
        $(#[$of])*
        #[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
        #[repr(C)]
        $vis struct $name {
            $( $(#[$of_field])* $vis_field $field: $type ),*
        }

        impl $crate::parameters::Parameters for $name {
            const WGSL: &'static str = concat!(
                "struct ", stringify!($name), " {\n",
                $( "    ", stringify!($field), ": ", stringify!($type), ",\n", )*
                "}\n"
            );
        }

        #[cfg(test)]
        inventory::submit! {
            $crate::parameters::Laid {
                name: stringify!($name),
                wgsl: <$name as $crate::parameters::Parameters>::WGSL,
                fields: &[ $( (stringify!($field), std::mem::offset_of!($name, $field), size_of::<$type>()) ),* ],
            }
        }
    )* };
}
pub(crate) use parameters;

/// A structure as Rust lays it out, for the test that compares it.
#[cfg(test)]
pub(crate) struct Laid {
    pub(crate) name: &'static str,
    pub(crate) wgsl: &'static str,
    /// Each field's name, first byte and bytes.
    pub(crate) fields: &'static [(&'static str, usize, usize)],
}

#[cfg(test)]
inventory::collect!(Laid);
