// The second operand of a product as it is stored, in workgroup memory term by term: `tile[1][term][4 columns]`.

// As `line_of_a`, of the other operand.
fn line_of_b(s: Share, term: u32, end: u32, line: u32) -> vec4<f32> {
    if B_DEEP == 1u {
        let column = s.first + line;
        return four_of_b(s.base + column * args.inner + term, select(0u, there(term, end), column < s.length));
    }
    let at = s.base + (term + line) * s.length + s.first;
    return four_of_b(at, select(0u, there(s.first, s.length), term + line < end));
}

// A share of the terms from `depth` on, a term in each column of the matrix.
fn bring(s: Share, depth: u32, end: u32) -> mat4x4<f32> {
    let term = depth + 4u * s.terms;
    if s.side == 0u { return bring_a(s, term, end); }
    let x = mat4x4<f32>(line_of_b(s, term, end, 0u), line_of_b(s, term, end, 1u), line_of_b(s, term, end, 2u),
        line_of_b(s, term, end, 3u));
    if B_DEEP == 1u { return transpose(x); }
    return x;
}

// The four columns SIDE further right, where there are any.
fn further(at: u32) -> vec4<f32> {
    if REACH == 1u { return vec4<f32>(); }
    return tile[at + SIDE];
}

// Four terms from `term` on.
fn add_four(sums: Sums, term: u32, row: u32, column: u32) -> Sums {
    let x = place(0u, term, row);
    let y = place(1u, term, column);
    let one = add_term(sums, x, tile[y], further(y));
    let two = add_term(one, x + FOURS, tile[y + FOURS], further(y + FOURS));
    let three = add_term(two, x + 2u * FOURS, tile[y + 2u * FOURS], further(y + 2u * FOURS));
    return add_term(three, x + 3u * FOURS, tile[y + 3u * FOURS], further(y + 3u * FOURS));
}
