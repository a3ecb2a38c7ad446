// The matrices of a thread, a column of KEY numbers each: memory or its gradient (M), momentum or its gradient (S), memory
// at the start of a frozen group or its gradient (C). Here they are in `work`, for columns that fit into no thread.

var<private> own: u32;

fn take(thread: u32) { own = args.scratch + thread; }
fn place(matrix: u32, i: u32) -> u32 { return own + (matrix * KEY + i) * args.count; }
fn m_at(i: u32) -> f32 { return bitcast<f32>(work[place(0u, i)]); }
fn s_at(i: u32) -> f32 { return bitcast<f32>(work[place(1u, i)]); }
fn c_at(i: u32) -> f32 { return bitcast<f32>(work[place(2u, i)]); }
fn set_m(i: u32, x: f32) { work[place(0u, i)] = bitcast<u32>(x); }
fn set_s(i: u32, x: f32) { work[place(1u, i)] = bitcast<u32>(x); }
fn set_c(i: u32, x: f32) { work[place(2u, i)] = bitcast<u32>(x); }
