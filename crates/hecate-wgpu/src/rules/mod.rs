//! The cells of this column: a file a rule.
