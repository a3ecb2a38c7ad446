//! Writes a kernel, and runs it on the first GPU: the softmax of 3 rows.

use hecate_core::Tensor;
use hecate_cuda::{Argument, Cuda, OwnGrid};
use hecate_ptx::{Library, Softmax, Specification, Target};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let gpu = match Cuda::new(0) {
        Ok(gpu) => gpu,
        Err(error) => {
            println!("nothing to run on: {error}");
            return Ok(());
        }
    };
    let (rows, length) = (3, 4);
    let softmax = Specification::from(Softmax::new(rows, length)?);
    // A kernel that needs a newer GPU is refused here. PTX 8.0 came with CUDA 12.0, the oldest driver that is taken.
    let (major, minor) = gpu.properties().capability;
    let module = Library::for_device(Target { isa: (8, 0), capability: 10 * major + minor }).write(&softmax)?;
    let kernel = gpu.load_ptx(module.text(), module.name())?;

    let x = Tensor::from_f32(&gpu, [3, 4], (0..12).map(|i| i as f32).collect())?;
    let y = Tensor::from_f32(&gpu, [3, 4], vec![0.0; 12])?;
    let launch = softmax.launch();
    let grid = OwnGrid { blocks: launch.grid, threads: launch.block, shared: 0 };
    let arguments = [Argument::Read(&x), Argument::Write(&y), Argument::U32(rows), Argument::U32(length)];
    // SAFETY: `module.parameters()` says that these are the kernel's; both arrays have 3 rows of 4, and nobody else reads `y`.
    #[allow(unsafe_code)]
    unsafe {
        kernel.launch(grid, &arguments)?;
    }
    for row in y.to_f32()?.chunks(4) {
        println!("{row:.4?}, whose sum is {:.6}", row.iter().sum::<f32>());
    }
    Ok(())
}
