// One token backward: equations (41) to (46), (56) to (59).

// Parts: the token's numbers; the read; the write; what was taught. Where tokens read before they write, the read comes
// last.
const READ_BACK: u32 = 1u;
const READING_BACK: u32 = 18u;
const WRITE_BACK: u32 = 19u;
const WRITING_BACK: u32 = 16u;
const TEACH_BACK: u32 = 35u;
const TEACHING_BACK: u32 = 23u;
const BACKWARD_END: u32 = 58u;

// What is done in a phase.
fn done_in(phase: u32) -> u32 {
    if (phase < READ_BACK || args.cell.read_after != 0u) {
        return phase;
    }
    let others = WRITING_BACK + TEACHING_BACK;
    return select(phase - others, phase + READING_BACK, phase < READ_BACK + others);
}

// The read and what was taught both take gradients of weights: first the weights are made of their state, in EXPOSING phases,
// and their gradients cleared; in the end these become gradients of the state, in two phases a matrix. `at` counts from the
// part's first phase, `pull` from the first of the last four.
struct Part {
    teaches: bool,
    at: u32,
    pull: u32,
    state: u32,
    gradient: u32,
}

const CLEAR: u32 = 6u;
const PULLING: u32 = 4u;

fn part_of(done: u32) -> Part {
    if (done >= TEACH_BACK) {
        let at = done - TEACH_BACK;
        return Part(true, at, at + PULLING - TEACHING_BACK, point, dpoint);
    }
    let at = done - READ_BACK;
    let seen = select(old, next, args.cell.read_after != 0u);
    return Part(false, at, at + PULLING - READING_BACK, seen, dstate);
}

fn writes(done: u32) -> bool {
    return done >= WRITE_BACK && done < TEACH_BACK;
}

fn pull_shape(at: u32) -> vec3<u32> {
    let layer = at / 2u;
    let kind = select(EACH | TOTAL, EACH, at % 2u == 1u);
    let wanted = RETENTION == LQ || (RETENTION == KL && at % 2u == 1u);
    return shape_if(wanted && has_layer(layer), kind, 1u, count_of(layer));
}

fn pull_element(p: Part, i: u32) -> vec4<f32> {
    if (RETENTION == DECAY) {
        return vec4(0.0);
    }
    let layer = p.pull / 2u;
    let place = begin_of(layer) + i;
    let dw = room[goal_of(p.gradient) + place];
    if (p.pull % 2u == 0u) {
        return vec4(along_pulled(room[p.state + place], dw, known(NORMS + layer)), 0.0, 0.0, 0.0);
    }
    room[p.gradient + place] += pulled(room[p.state + place], dw, known(NORMS + layer), known(ALONG + layer));
    return vec4(0.0);
}

fn shape_of(phase: u32) -> vec3<u32> {
    let done = done_in(phase);
    if (done < READ_BACK) {
        return vec3(EACH, 1u, 1u);
    }
    if (writes(done)) {
        return write_back_shape(done - WRITE_BACK);
    }
    let p = part_of(done);
    if (p.at < EXPOSING) {
        return expose_shape(p.at);
    }
    if (p.at == CLEAR) {
        return shape_if(RETENTION != DECAY, EACH, 1u, all_weights());
    }
    if (p.pull < PULLING) {
        return pull_shape(p.pull);
    }
    if (p.teaches) {
        return teach_back_shape(p.at);
    }
    return read_back_shape(p.at);
}

fn job_at(phase: u32) -> Job {
    let done = done_in(phase);
    if (writes(done)) {
        return write_back_job(done - WRITE_BACK);
    }
    let p = part_of(done);
    if (p.teaches) {
        return teach_back_job(p.at);
    }
    return read_back_job(p);
}

fn element(phase: u32, i: u32) -> vec4<f32> {
    let done = done_in(phase);
    if (done < READ_BACK) {
        begin_token();
        return vec4(0.0);
    }
    if (writes(done)) {
        return write_back_element(done - WRITE_BACK, i);
    }
    let p = part_of(done);
    if (p.at < EXPOSING) {
        return expose_element(p.at, p.state, i);
    }
    if (p.at == CLEAR) {
        room[goal_of(p.gradient) + i] = 0.0;
        return vec4(0.0);
    }
    if (p.pull < PULLING) {
        return pull_element(p, i);
    }
    if (p.teaches) {
        return teach_back_element(p.at, i);
    }
    return read_back_element(p.at, i);
}

fn totalled(phase: u32, sums: vec4<f32>) {
    let done = done_in(phase);
    if (writes(done)) {
        write_back_totalled(done - WRITE_BACK, sums);
        return;
    }
    let p = part_of(done);
    if (p.at < EXPOSING) {
        expose_totalled(p.at, sums.x);
    } else if (p.pull < PULLING) {
        know(ALONG + p.pull / 2u, sums.x);
    } else if (p.teaches && p.at == 10u) {
        know(MEAN, sums.x);
        know(ALONG, sums.y);
    } else {
        know_sums(sums);
    }
}

fn along(phase: u32, i: u32, c: u32) -> vec4<f32> {
    let done = done_in(phase);
    if (RETENTION == KL && writes(done)) {
        return write_back_along(done - WRITE_BACK, i, c);
    }
    return teach_back_along(i, c);
}

fn down(phase: u32, i: u32, c: u32) -> f32 {
    if (RETENTION != KL) {
        return 0.0;
    }
    return write_back_down(done_in(phase) - WRITE_BACK, i, c);
}

fn landed(phase: u32, c: u32, sum: f32) {
    if (RETENTION == KL) {
        put(scratch_rows().columns + c, sum);
    }
}
