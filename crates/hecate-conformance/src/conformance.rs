//! Instantiates the checks for one backend.

/// A column's tests: a module for every rule and, in `primitives`, for every primitive. `backends` is a function of the
/// same module without arguments. It gives the values under test as a `Vec<B>` with `B: Backend`. The list is empty
/// where the device is missing and [`require::skip`](crate::require::skip) has said so.
///
/// `cargo test --test cpu titans::` runs a cell, `cargo test --test cpu primitives::matmul` a primitive.
/// The rules are those of [`for_each_named_rule!`](hecate_core::for_each_named_rule!), so that none can be left out;
/// [`every_cell_is_tested`](crate::every_cell_is_tested) makes sure that nobody replaces this call by a shorter list.
#[macro_export]
macro_rules! conformance {
    ($backends:ident) => {
        use $crate::conformance_cells;
        hecate_core::for_each_named_rule!(conformance_cells, $backends,);
        mod primitives {
            use $crate::{for_each_primitive, primitive_modules};
            for_each_primitive!(primitive_modules, $backends,);
        }
    };
}

/// A cell for each of these rules, for the lists of `hecate-core`:
/// `for_each_linear_rule!(conformance_cells, backends,)`.
#[macro_export]
macro_rules! conformance_cells {
    ($backends:ident, $($name:ident $rule:ident),*) => { $($crate::conformance_cell!($backends, $name: $rule);)* };
}

/// The tests of one cell alone, in a module of that name: `conformance_cell!(backends, delta: Delta)`. The backend needs
/// [`Kernel`](hecate_core::Kernel) of that rule and nothing else, so a new one can start with one cell. A rule of another crate
/// is named by its path from inside of the module: `conformance_cell!(backends, mine = crate::Mine)`.
#[macro_export]
macro_rules! conformance_cell {
    ($backends:ident, $module:ident: $rule:ident) => {
        $crate::conformance_cell! { $backends, $module = hecate_core::rules::$rule }
    };
    ($backends:ident, $module:ident = $rule:ty) => {
        mod $module {
            $crate::for_each_check!(conformance_checks, $backends, $rule,);
            use $crate::conformance_checks;
        }
    };
}

/// Calls `$callback!` with the names of all checks of a rule, which are those of functions in [`checks`](crate::checks).
#[macro_export]
macro_rules! for_each_check {
    ($callback:ident $(, $($before:tt)*)?) => {
        $callback! {
            $($($before)*)?
            forward, backward, anchored, rounding, cut_is_whole, packed_is_separate, token_by_token, repeats, gates_at_limits,
            anchors_next_to_one,
            correlated_keys, fresh_memory, nan_is_seen, refuses_inputs, refuses_grads
        }
    };
}

/// A test for each of these checks; the body of [`conformance_cell!`].
#[macro_export]
macro_rules! conformance_checks {
    ($backends:ident, $rule:ty, $($check:ident),*) => { $(
        #[test]
        fn $check() {
            let backends = super::$backends();
            // Whoever has no device has said so.
            if !backends.is_empty() {
                $crate::checks::$check::<$rule, _>(&backends);
            }
        }
    )* };
}

/// Calls `$callback!` with the names of all checks of a primitive, functions in
/// [`checks::primitive`](crate::checks::primitive).
#[macro_export]
macro_rules! for_each_primitive_check {
    ($callback:ident $(, $($before:tt)*)?) => { $callback! { $($($before)*)? agrees, repeats, rounding, equations } };
}

/// One module per primitive.
#[macro_export]
macro_rules! primitive_modules {
    ($backends:ident, $($primitive:ident),*) => { $(
        mod $primitive {
            $crate::for_each_primitive_check!(primitive_checks, $backends, $primitive,);
            use $crate::primitive_checks;
        }
    )* };
}

/// A test for each of these checks; the body of a module of [`primitive_modules!`].
#[macro_export]
macro_rules! primitive_checks {
    ($backends:ident, $primitive:ident, $($check:ident),*) => { $(
        #[test]
        fn $check() {
            let backends = super::super::$backends();
            if !backends.is_empty() {
                $crate::checks::primitive::$check(&backends, &$crate::primitive_cases::$primitive());
            }
        }
    )* };
}

/// Tests that a column must have: every check of every rule, and of every primitive.
fn wanted() -> Vec<String> {
    macro_rules! names {
        ($($name:ident $rule:ident),*) => { [$(stringify!($name)),*] };
        ($($name:ident),*) => { [$(stringify!($name)),*] };
    }
    // Built from the lists that the macros use, so a new rule or check is wanted at once.
    let (rules, checks) = (hecate_core::for_each_named_rule!(names), for_each_check!(names));
    let (primitives, primitive_checks) = (crate::for_each_primitive!(names), for_each_primitive_check!(names));
    let cell = |rule: &&str| checks.map(|check| format!("{rule}::{check}"));
    let primitive = |name: &&str| primitive_checks.map(|check| format!("primitives::{name}::{check}"));
    rules.iter().flat_map(cell).chain(primitives.iter().flat_map(primitive)).collect()
}

/// Those of [`wanted`] that a test program's `--list` does not name.
fn missing(listing: &str) -> Vec<String> {
    // The test harness lists `path: test`, one a line.
    let listed = |name: &String| listing.lines().any(|line| line.strip_suffix(": test") == Some(name));
    wanted().into_iter().filter(|name| !listed(name)).collect()
}

/// The test program that calls this has every test of a column, ignored or not. For a test of each column.
///
/// # Panics
/// Naming the tests that are missing; if the program cannot list its tests.
pub fn every_cell_is_tested() {
    // Asks the program itself: macros cannot count the tests that they made.
    let program = std::env::current_exe().expect("the path of this program");
    let listing = std::process::Command::new(program).arg("--list").output().expect("a list of its tests");
    assert!(listing.status.success(), "the test program does not list its tests: {}", listing.status);
    let missing = missing(&String::from_utf8_lossy(&listing.stdout));
    assert!(missing.is_empty(), "this column has no test {}: `conformance!` makes them all", missing.join(", "));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_test_is_named() {
        // A listing as the harness prints it.
        let all: String = wanted().iter().map(|name| format!("{name}: test\n")).collect();
        assert!(missing(&all).is_empty());
        assert_eq!(missing(&all.replace("titans::backward: test\n", "")), ["titans::backward"]);
        assert_eq!(missing(""), wanted());
    }
}
