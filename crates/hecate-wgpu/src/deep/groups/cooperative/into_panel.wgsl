// Adds panels, each times one number, to a subgroup's matrix of sums and stores it into the result at once.

// sums [SIDE,SIDE] + by * panel[at], where `at` is the matrix's first element.
fn with_panel(sums: Sums, panel: u32, by: u32, at: u32) -> Sums {
    let place = base + panel + at;
    let stride = args.columns;
    return sums + share(by, 0u) * coopLoadT<Sums>(&workspace[place], stride);
}

// out[row, column] = own + first_by * first + second_by * second + third_by * third + own_by * out, for one matrix [SIDE,SIDE].
fn put(own: Sums, row: u32, column: u32) {
    let at = row * args.columns + column;
    // In the order of `finish`.
    var sums = own;
    if args.first_by != NOTHING { sums = with_panel(sums, args.first, args.first_by, at); }
    if args.second_by != NOTHING { sums = with_panel(sums, args.second, args.second_by, at); }
    if args.third_by != NOTHING { sums = with_panel(sums, args.third, args.third_by, at); }
    if args.own_by != NOTHING { sums = with_panel(sums, args.out, args.own_by, at); }
    // Before the store, which naga 30 would write in front of what its arguments are made of.
    let to = base + args.out + at;
    let stride = args.columns;
    coopStoreT(sums, &workspace[to], stride);
}
