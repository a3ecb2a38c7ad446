// An invocation's rows of a column written, to the array of this number.

// `which` names the array for `put_state`; `at` is the place of row 0 of this column.
fn write_rows(which: u32, at: u32, part: u32, rows: Rows) {
    var x = fours_of(rows);
    for (var i = 0u; i < ROWS; i++) {
        let row = row_of(part, i / 4u) + i % 4u;
        // Rows beyond the key are padding in registers alone.
        if row < key_length() {
            put_state(which, at + row * args.value, x[i / 4u][i % 4u]);
        }
    }
}
