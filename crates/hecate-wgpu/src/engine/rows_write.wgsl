// Columns of matrices written, each to the array of its number.

fn write_four(which: u32, at: u32, row: u32, x: vec4<f32>) {
    if row < KEY {
        put_state(which, at + row * args.value, x.x);
    }
    if row + 1u < KEY {
        put_state(which, at + (row + 1u) * args.value, x.y);
    }
    if row + 2u < KEY {
        put_state(which, at + (row + 2u) * args.value, x.z);
    }
    if row + 3u < KEY {
        put_state(which, at + (row + 3u) * args.value, x.w);
    }
}

fn write_rows(which: u32, at: u32, part: u32, x: Rows) {
    let r = part * ROWS;
    write_four(which, at, r, x.a);
    write_four(which, at, r + 4u, x.b);
    write_four(which, at, r + 8u, x.c);
    write_four(which, at, r + 12u, x.d);
    write_four(which, at, r + 16u, x.e);
    write_four(which, at, r + 20u, x.f);
    write_four(which, at, r + 24u, x.g);
    write_four(which, at, r + 28u, x.h);
}
