//! Instantiates the checks for one backend.

/// A module of tests for every rule and, in `primitives`, for every primitive, on the backend values of an expression
/// (`Vec<B>`): `cargo test --test cpu titans::` runs a cell, `cargo test --test cpu primitives::matmul` a primitive.
#[macro_export]
macro_rules! conformance {
    ($backends:expr) => {
        /// The values under test.
        fn backends() -> Vec<impl hecate_core::Backend> {
            $backends
        }
        use $crate::rule_modules;
        hecate_core::for_each_rule!(rule_modules);
        mod primitives {
            use $crate::{for_each_primitive, primitive_modules};
            for_each_primitive!(primitive_modules);
        }
    };
}

/// One module per rule; the body of [`conformance!`].
#[macro_export]
macro_rules! rule_modules {
    ($($rule:ident),*) => { $($crate::rule_module!($rule);)* };
}

/// The module of a rule. A rule that is not named here does not compile.
#[macro_export]
macro_rules! rule_module {
    (Hebbian) => { $crate::rule_tests!(hebbian Hebbian); };
    (Delta) => { $crate::rule_tests!(delta Delta); };
    (Titans) => { $crate::rule_tests!(titans Titans); };
    (Dgd) => { $crate::rule_tests!(dgd Dgd); };
    (TitansMlp) => { $crate::rule_tests!(titans_mlp TitansMlp); };
    (Moneta) => { $crate::rule_tests!(moneta Moneta); };
    (MonetaMatrix) => { $crate::rule_tests!(moneta_matrix MonetaMatrix); };
    (Yaad) => { $crate::rule_tests!(yaad Yaad); };
    (YaadMatrix) => { $crate::rule_tests!(yaad_matrix YaadMatrix); };
    (YaadMomentum) => { $crate::rule_tests!(yaad_momentum YaadMomentum); };
    (Memora) => { $crate::rule_tests!(memora Memora); };
    (MemoraMatrix) => { $crate::rule_tests!(memora_matrix MemoraMatrix); };
    (Lattice) => { $crate::rule_tests!(lattice Lattice); };
    (Trellis) => { $crate::rule_tests!(trellis Trellis); };
    (Atlas) => { $crate::rule_tests!(atlas Atlas); };
}

/// Every check of one rule.
#[macro_export]
macro_rules! rule_tests {
    ($module:ident $rule:ident) => {
        mod $module {
            $crate::rule_tests! { @ $rule:
                forward backward rounding cut_is_whole packed_is_separate token_by_token repeats gates_at_limits
                correlated_keys fresh_memory nan_is_seen refuses_inputs refuses_grads
            }
        }
    };
    (@ $rule:ident: $($check:ident)*) => { $(
        #[test]
        fn $check() {
            let backends = super::backends();
            // Whoever has no device has said so.
            if !backends.is_empty() {
                $crate::checks::$check::<hecate_core::rules::$rule, _>(&backends);
            }
        }
    )* };
}

/// One module per primitive.
#[macro_export]
macro_rules! primitive_modules {
    ($($primitive:ident),*) => { $(
        mod $primitive {
            $crate::primitive_modules! { @ $primitive: agrees repeats rounding equations }
        }
    )* };
    (@ $primitive:ident: $($check:ident)*) => { $(
        #[test]
        fn $check() {
            let backends = super::super::backends();
            if !backends.is_empty() {
                $crate::checks::primitive::$check(&backends, &$crate::problems::$primitive());
            }
        }
    )* };
}
