// All phases of a token, by the part that they belong to.

fn shape_of(phase: u32) -> vec3<u32> {
    if (!GOES_BACK || phase < FORWARD_END) {
        return forward_shape(forward_phase(phase));
    }
    let at = backward_phase(phase);
    if (at < READ_BACK) {
        return vec3(EACH, 1u, 1u);
    }
    if (at < WRITE_BACK) {
        return read_back_shape(at - READ_BACK);
    }
    if (at < TEACH_BACK) {
        return write_back_shape(at - WRITE_BACK);
    }
    if (at < TEACH_BACK + TEACHING_BACK) {
        return teach_back_shape(at - TEACH_BACK);
    }
    return nothing();
}

fn job_at(phase: u32) -> Job {
    if (!GOES_BACK || phase < FORWARD_END) {
        return forward_job(forward_phase(phase));
    }
    let at = backward_phase(phase);
    if (at < WRITE_BACK) {
        return read_back_job(at - READ_BACK);
    }
    if (at < TEACH_BACK) {
        return write_back_job(at - WRITE_BACK);
    }
    return teach_back_job(at - TEACH_BACK);
}

fn element(phase: u32, i: u32) -> vec4<f32> {
    if (!GOES_BACK || phase < FORWARD_END) {
        return forward_element(forward_phase(phase), i);
    }
    let at = backward_phase(phase);
    if (at < READ_BACK) {
        begin_token();
        return vec4(0.0);
    }
    if (at < WRITE_BACK) {
        return read_back_element(at - READ_BACK, i);
    }
    if (at < TEACH_BACK) {
        return write_back_element(at - WRITE_BACK, i);
    }
    return teach_back_element(at - TEACH_BACK, i);
}

fn totalled(phase: u32, sums: vec4<f32>) {
    if (!GOES_BACK || phase < FORWARD_END) {
        forward_totalled(forward_phase(phase), sums);
        return;
    }
    let at = backward_phase(phase);
    if (at < WRITE_BACK) {
        let own = at - READ_BACK;
        if (own < EXPOSING) {
            expose_totalled(own, sums.x);
        } else if (own >= 14u) {
            know(ALONG + (own - 14u) / 2u, sums.x);
        } else {
            know_sums(sums);
        }
    } else if (at < TEACH_BACK) {
        write_back_totalled(at - WRITE_BACK, sums);
    } else {
        let own = at - TEACH_BACK;
        if (own < EXPOSING) {
            expose_totalled(own, sums.x);
        } else if (own >= 19u) {
            know(ALONG + (own - 19u) / 2u, sums.x);
        } else {
            teach_back_totalled(own, sums);
        }
    }
}

fn along(phase: u32, i: u32, c: u32) -> vec4<f32> {
    if (!GOES_BACK || phase < FORWARD_END) {
        return write_along(forward_phase(phase) - WRITE, i, c);
    }
    let at = backward_phase(phase);
    if (at < TEACH_BACK) {
        return write_back_along(at - WRITE_BACK, i, c);
    }
    return teach_back_along(i, c);
}

fn down(phase: u32, i: u32, c: u32) -> f32 {
    if (!GOES_BACK || phase < FORWARD_END) {
        return write_down(forward_phase(phase) - WRITE, i, c);
    }
    return write_back_down(backward_phase(phase) - WRITE_BACK, i, c);
}

// The logarithm of a column's sum joins what was taken out of it before.
fn landed_as(phase: u32, before: f32, sum: f32) -> f32 {
    if ((!GOES_BACK || phase < FORWARD_END) && (forward_phase(phase) - WRITE - 2u) % 3u == 1u) {
        return before + logarithm(sum);
    }
    return sum;
}
