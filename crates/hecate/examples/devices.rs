//! Lists devices, chooses the best, and does some work there: the same code for every backend.

use hecate::prelude::*;

/// Work that any backend can do.
struct Sum(Vec<f32>);

impl Job for Sum {
    type Output = hecate::Result<(&'static str, f32)>;

    fn run<B: Backend>(self, device: &B) -> Self::Output {
        let x = Tensor::from_f32(device, [self.0.len()], self.0)?;
        Ok((B::NAME, primitives::sum(&x)?.to_f32()?[0]))
    }
}

fn main() -> hecate::Result<()> {
    let found = devices();
    for device in &found.found {
        println!("{}: {}, {:?}", device.id, device.name, device.properties);
    }
    for absent in &found.absent {
        println!("no {}: {}", absent.backend, absent.why);
    }

    // `best` takes a GPU where there is one, and says why not elsewhere; `cuda:1` or `wgpu:radeon` name a device.
    let best = select(&found, &Choose::Best)?;
    let (name, sum) = best.run(Sum(vec![1.0, 2.0, 3.5]))??;
    println!("{sum} on {name}; {best:?}");
    assert_eq!(sum, 6.5);

    // The equations as they stand, on the processor: what other devices are compared with.
    let reference = select(&found, &Choose::Reference)?;
    assert_eq!(reference.run(Sum(vec![1.0, 2.0, 3.5]))??, ("cpu", 6.5));
    Ok(())
}
