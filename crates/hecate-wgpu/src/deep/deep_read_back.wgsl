// The read: what it adds to the gradients of the query and of the weights that it saw.
fn read_back_shape(at: u32) -> vec3<u32> {
    let d = args.cell.hidden;
    let v = args.call.value;
    switch at {
        case 7u: {
            return each_of(v, has_norm());
        }
        case 8u: {
            return shape_if(has_norm(), EACH, 1u, v);
        }
        case 9u: {
            return shape_if(is_mlp(), TRANSPOSED, d, v);
        }
        case 10u: {
            return shape_if(is_mlp(), EACH, 1u, d);
        }
        case 11u: {
            return vec3(TRANSPOSED | ADD, args.call.key, inner());
        }
        case 12u: {
            return vec3(UPDATE, args.call.key, inner());
        }
        default: {
            return shape_if(is_mlp(), UPDATE, d, v);
        }
    }
}

fn read_back_job(p: Part) -> Job {
    let s = scratch_rows();
    let weights = weights_of(p.state);
    let goal = goal_of(p.gradient);
    let inside = select(s.dread, s.dpre, is_mlp());
    switch p.at {
        case 9u: {
            return job(s.dpre, s.dread, weights + first_weights());
        }
        case 11u: {
            return job(grads.q, inside, weights);
        }
        case 12u: {
            return job(inside, token.q, goal);
        }
        default: {
            return job(s.dread, record_rows().read_h, goal + first_weights());
        }
    }
}

fn read_back_element(at: u32, i: u32) -> vec4<f32> {
    let r = record_rows();
    let s = scratch_rows();
    switch at {
        case 7u: {
            let dy = row(out + i);
            if (is_residual()) {
                put_more(grads.q + i, dy);
            }
            put(s.dread + i, dy);
            if (has_norm()) {
                return vec4(dy, row(r.read_normed + i) * dy, 0.0, 0.0);
            }
        }
        case 8u: {
            let means = sums_known().xy / f32(args.call.value);
            put(s.dread + i, jacobian(row(r.read_normed + i), row(out + i), means, row(r.read_deviation)));
        }
        default: {
            put(s.dpre + i, row(s.dpre + i) * row(r.read_slope + i));
        }
    }
    return vec4(0.0);
}

