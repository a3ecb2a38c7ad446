// An invocation's rows of a column written, to the array of this number.

fn write_rows(which: u32, at: u32, part: u32, rows: Rows) {
    var x = array<f32, ROWS>(
        rows.a.x, rows.a.y, rows.a.z, rows.a.w, rows.b.x, rows.b.y, rows.b.z, rows.b.w,
        rows.c.x, rows.c.y, rows.c.z, rows.c.w, rows.d.x, rows.d.y, rows.d.z, rows.d.w,
        rows.e.x, rows.e.y, rows.e.z, rows.e.w, rows.f.x, rows.f.y, rows.f.z, rows.f.w,
        rows.g.x, rows.g.y, rows.g.z, rows.g.w, rows.h.x, rows.h.y, rows.h.z, rows.h.w
    );
    for (var i = 0u; i < ROWS; i++) {
        if part * ROWS + i < KEY {
            put_state(which, at + (part * ROWS + i) * args.value, x[i]);
        }
    }
}
