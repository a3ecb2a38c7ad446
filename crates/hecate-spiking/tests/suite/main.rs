//! What a network must do: recorded and generated networks, plasticity, bad input, damaged files.

mod bad_inputs;
mod damage;
mod generated;
mod naive;
mod plasticity;
mod recorded;
mod specs;
