// One token backward: equations (41) to (46), (56) to (59).

// Parts: the token's scalars; the read; the write; the inner gradient. Where tokens read before they write, the read comes
// last.
// First phases of the parts, and how many phases each has.
const READ_VJP: u32 = 1u;
const READ_VJP_PHASES: u32 = 18u;
const WRITE_VJP: u32 = 19u;
const WRITE_VJP_PHASES: u32 = 16u;
const INNER_GRAD_VJP: u32 = 35u;
const INNER_GRAD_VJP_PHASES: u32 = 23u;
const BACKWARD_END: u32 = 58u;

// What is done in a phase.
// As in the forward, phases are numbered for a read after the write, and swapped otherwise.
fn done_in(phase: u32) -> u32 {
    if (phase < READ_VJP || args.cell.read_after != 0u) {
        return phase;
    }
    let others = WRITE_VJP_PHASES + INNER_GRAD_VJP_PHASES;
    return select(phase - others, phase + READ_VJP_PHASES, phase < READ_VJP + others);
}

// The read and the inner gradient both take gradients of weights. First the weights are made of their state, in
// TO_WEIGHTS_PHASES phases, and their gradients cleared. In the end these become gradients of the state, in two phases a
// matrix. `at` counts from the part's first phase, `pullback_at` from the first of the last four.
// Which part a phase belongs to, and the state and gradient that it is about.
struct Part {
    is_inner_grad: bool,
    at: u32,
    pullback_at: u32,
    state: u32,
    gradient: u32,
}

// The phase after those that make weights.
const CLEAR: u32 = 6u;
const PULLBACK_PHASES: u32 = 4u;

// The inner gradient was taken at the point; the read saw `old` or `next`.
fn part_of(done: u32) -> Part {
    if (done >= INNER_GRAD_VJP) {
        let at = done - INNER_GRAD_VJP;
        return Part(true, at, at + PULLBACK_PHASES - INNER_GRAD_VJP_PHASES, point, dpoint);
    }
    let at = done - READ_VJP;
    let seen = select(old, next, args.cell.read_after != 0u);
    return Part(false, at, at + PULLBACK_PHASES - READ_VJP_PHASES, seen, dstate);
}

// The write has phases of its own kind.
fn writes(done: u32) -> bool {
    return done >= WRITE_VJP && done < INNER_GRAD_VJP;
}

// Only L_q needs ⟨W̄, B⟩; KL needs the second phase alone.
fn pullback_shape(at: u32) -> vec3<u32> {
    let layer = at / 2u;
    let kind = select(EACH | TOTAL, EACH, at % 2u == 1u);
    let wanted = RETENTION == LQ || (RETENTION == KL && at % 2u == 1u);
    return shape_if(wanted && has_layer(layer), kind, 1u, count_of(layer));
}

// The gradient of the state from that of its weights, element by element.
fn pullback_element(p: Part, i: u32) -> vec4<f32> {
    if (RETENTION == DECAY) {
        return vec4(0.0);
    }
    let layer = p.pullback_at / 2u;
    // W₀ first, then W₁: element `i` of one of them.
    let place = begin_of(layer) + i;
    let dw = workspace[goal_of(p.gradient) + place];
    // The sum over a matrix first; the second phase needs it in every element.
    if (p.pullback_at % 2u == 0u) {
        return vec4(pullback_along(workspace[p.state + place], dw, known(NORMS + layer)), 0.0, 0.0, 0.0);
    }
    // X̄ += ν^{2−q} …, (54), or c exp(X) ∘ W̄, (55).
    workspace[p.gradient + place] += pullback(workspace[p.state + place], dw, known(NORMS + layer), known(ALONG + layer));
    return vec4(0.0);
}

// Three parts share the phases that make weights, clear gradients and pull them back.
fn shape_of(phase: u32) -> vec3<u32> {
    let done = done_in(phase);
    if (done < READ_VJP) {
        return vec3(EACH, 1u, 1u);
    }
    if (writes(done)) {
        return write_vjp_shape(done - WRITE_VJP);
    }
    let p = part_of(done);
    if (p.at < TO_WEIGHTS_PHASES) {
        return to_weights_shape(p.at);
    }
    if (p.at == CLEAR) {
        return shape_if(RETENTION != DECAY, EACH, 1u, all_weights());
    }
    if (p.pullback_at < PULLBACK_PHASES) {
        return pullback_shape(p.pullback_at);
    }
    if (p.is_inner_grad) {
        return inner_grad_vjp_shape(p.at);
    }
    return read_vjp_shape(p.at);
}

// y, x and the matrix of each product, by part.
fn job_at(phase: u32) -> Job {
    let done = done_in(phase);
    if (writes(done)) {
        return write_vjp_job(done - WRITE_VJP);
    }
    let p = part_of(done);
    if (p.is_inner_grad) {
        return inner_grad_vjp_job(p.at);
    }
    return read_vjp_job(p);
}

// Phases are told apart by part, then by number.
fn element(phase: u32, i: u32) -> vec4<f32> {
    let done = done_in(phase);
    if (done < READ_VJP) {
        begin_token();
        return vec4(0.0);
    }
    if (writes(done)) {
        return write_vjp_element(done - WRITE_VJP, i);
    }
    let p = part_of(done);
    if (p.at < TO_WEIGHTS_PHASES) {
        return to_weights_element(p.at, p.state, i);
    }
    if (p.at == CLEAR) {
        workspace[goal_of(p.gradient) + i] = 0.0;
        return vec4(0.0);
    }
    if (p.pullback_at < PULLBACK_PHASES) {
        return pullback_element(p, i);
    }
    if (p.is_inner_grad) {
        return inner_grad_vjp_element(p.at, i);
    }
    return read_vjp_element(p.at, i);
}

// `at` and `pullback_at` are below their bounds in one part only.
fn totalled(phase: u32, sums: vec4<f32>) {
    let done = done_in(phase);
    if (writes(done)) {
        write_vjp_totalled(done - WRITE_VJP, sums);
        return;
    }
    let p = part_of(done);
    if (p.at < TO_WEIGHTS_PHASES) {
        to_weights_totalled(p.at, sums.x);
    } else if (p.pullback_at < PULLBACK_PHASES) {
        // ⟨W̄, B⟩ or ⟨W̄, X⟩ of this matrix.
        know(ALONG + p.pullback_at / 2u, sums.x);
    } else if (p.is_inner_grad && p.at == INNER_GRAD_VJP_U) {
        know(MEAN, sums.x);
        know(ALONG, sums.y);
        know(CLIPPED_ALONG, sums.z);
    } else {
        know_sums(sums);
    }
}

// Sweeps belong to the write, and to W₁ of the inner gradient.
fn along(phase: u32, i: u32, c: u32) -> vec4<f32> {
    let done = done_in(phase);
    // KL's write goes over its matrices by elements.
    if (RETENTION == KL && writes(done)) {
        return write_vjp_along(done - WRITE_VJP, i, c);
    }
    return inner_grad_vjp_along(i, c);
}

// Only KL goes down columns, in the write.
fn down(phase: u32, i: u32, c: u32) -> f32 {
    if (RETENTION != KL) {
        return 0.0;
    }
    return write_vjp_down(done_in(phase) - WRITE_VJP, i, c);
}

// A sum for each column.
fn landed(phase: u32, c: u32, sum: f32) {
    if (RETENTION == KL) {
        put(scratch_rows().columns + c, sum);
    }
}
