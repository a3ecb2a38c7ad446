//! A tensor never claims more than its buffer holds: kernels trust shapes, and safe code hands buffers over.

use hecate_core::{DType, Device, Error, Host, Tensor};

/// A buffer is refused under a shape that it does not fill, and downloads end where it does.
pub fn holds_what_it_claims<D: Device>(device: &D) {
    let buffer = || device.upload(Host::F32(vec![1.0; 4])).expect("an upload");
    let whole = Tensor::from_buffer(device, [2, 2], DType::F32, buffer()).expect("four elements in a buffer of four");
    assert_eq!(whole.to_f32().expect("a download"), [1.0; 4]);
    // Pools round sizes up: a claim is far over what any of them would give for four elements.
    for count in [1 << 20, usize::MAX] {
        refused(Tensor::from_buffer(device, [count], DType::F32, buffer()).map(drop), count);
        refused(device.download(&buffer(), DType::F32, count).map(drop), count);
    }
}

/// A buffer of `there` makes no tensor of `here`, and is not read through it, where devices have memories of their own.
/// Its size would fit: nothing but the device is wrong.
pub fn stays_on_its_device<D: Device>(here: &D, there: &D) {
    let buffer = there.upload(Host::F32(vec![1.0; 4])).expect("an upload");
    for result in
        [here.download(&buffer, DType::F32, 4).map(drop), Tensor::from_buffer(here, [4], DType::F32, buffer).map(drop)]
    {
        match result {
            Err(Error::OtherDevice { expected, found, .. }) => {
                assert_eq!((&expected, &found), (here.id(), there.id()));
            }
            other => panic!("a buffer of {} on {}: {other:?}", there.id(), here.id()),
        }
    }
}

/// The error names what was asked for.
fn refused(result: hecate_core::Result<()>, asked: usize) {
    match result {
        Err(Error::Buffer { count, dtype: DType::F32, .. }) => assert_eq!(count, asked),
        other => panic!("{asked} elements of a buffer of four: {other:?}"),
    }
}
