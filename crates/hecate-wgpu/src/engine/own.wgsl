// The matrices of a thread, a column of KEY numbers each: memory or its gradient (M), momentum or its gradient (S), memory
// at the start of a frozen group or its gradient (C). Here they are the thread's own.

var<private> own_m: array<f32, KEY>;
var<private> own_s: array<f32, KEY * MOMENTUM + 1u - MOMENTUM>;
var<private> own_c: array<f32, KEY * FROZEN + 1u - FROZEN>;

fn take(thread: u32) {}
fn m_at(i: u32) -> f32 { return own_m[i]; }
fn s_at(i: u32) -> f32 { return own_s[i]; }
fn c_at(i: u32) -> f32 { return own_c[i]; }
fn set_m(i: u32, x: f32) { own_m[i] = x; }
fn set_s(i: u32, x: f32) { own_s[i] = x; }
fn set_c(i: u32, x: f32) { own_c[i] = x; }
