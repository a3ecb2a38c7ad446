//! Memory that notices what a GPU would not: reading what nobody wrote, writing twice, and races.

/// A reason why a kernel is wrong.
pub(crate) type Fault = String;

/// What one access reads: at most 16 bytes, of which the first are meant.
pub(crate) type Bytes = [u8; 16];

/// Global memory: the upper half of an address is the number of an array, so an index past its end is always seen.
#[derive(Debug, Default)]
pub(crate) struct Global {
    arrays: Vec<Array>,
}

#[derive(Debug)]
struct Array {
    bytes: Vec<u8>,
    /// For each byte whether a kernel may still write it; none for an input.
    free: Option<Vec<bool>>,
}

impl Global {
    /// Puts an array; `output` may be written once, and not read.
    pub(crate) fn array(&mut self, bytes: Vec<u8>, output: bool) -> u64 {
        let free = output.then(|| vec![true; bytes.len()]);
        self.arrays.push(Array { bytes, free });
        (self.arrays.len() as u64) << 32
    }

    pub(crate) fn bytes(&self, address: u64) -> &[u8] {
        &self.arrays[(address >> 32) as usize - 1].bytes
    }

    fn place(&mut self, address: u64, length: usize) -> Result<(&mut Array, usize), Fault> {
        let at = (address & 0xffff_ffff) as usize;
        let number = (address >> 32) as usize;
        let array = number.checked_sub(1).and_then(|number| self.arrays.get_mut(number));
        let array = array.ok_or_else(|| format!("{address:#x} is no address of an array"))?;
        if at + length > array.bytes.len() {
            return Err(format!("bytes {at} to {} of array {number}, which has {}", at + length, array.bytes.len()));
        }
        if !at.is_multiple_of(length) {
            return Err(format!("byte {at} is no multiple of {length}"));
        }
        Ok((array, at))
    }

    pub(crate) fn load(&mut self, address: u64, length: usize) -> Result<Bytes, Fault> {
        let (array, at) = self.place(address, length)?;
        if array.free.is_some() {
            return Err("an output is read".to_owned());
        }
        let mut bytes = Bytes::default();
        bytes[..length].copy_from_slice(&array.bytes[at..at + length]);
        Ok(bytes)
    }

    pub(crate) fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let (array, at) = self.place(address, bytes.len())?;
        let free = array.free.as_mut().ok_or("an input is written")?;
        if free[at..at + bytes.len()].contains(&false) {
            return Err(format!("byte {at} of an output is written twice"));
        }
        free[at..at + bytes.len()].fill(false);
        array.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// Who touched a byte of shared memory since the last barrier.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Touch {
    #[default]
    Nobody,
    Thread(usize),
    Many,
}

impl Touch {
    /// Whether anybody but this thread did.
    fn by_others(self, thread: usize) -> bool {
        self != Self::Nobody && self != Self::Thread(thread)
    }

    fn and(self, thread: usize) -> Self {
        if self.by_others(thread) { Self::Many } else { Self::Thread(thread) }
    }
}

/// A byte of shared memory; its value is nothing until it is written.
#[derive(Clone, Copy, Debug, Default)]
struct Byte {
    value: Option<u8>,
    read: Touch,
    written: Touch,
}

/// Shared memory of a block.
#[derive(Debug)]
pub(crate) struct Shared {
    bytes: Vec<Byte>,
}

impl Shared {
    pub(crate) fn new(length: usize) -> Self {
        Self { bytes: vec![Byte::default(); length] }
    }

    /// From here on all threads know of each other.
    pub(crate) fn barrier(&mut self) {
        for byte in &mut self.bytes {
            (byte.read, byte.written) = (Touch::Nobody, Touch::Nobody);
        }
    }

    fn place(&mut self, address: u64, length: usize) -> Result<&mut [Byte], Fault> {
        let (at, all) = (address as usize, self.bytes.len());
        if !at.is_multiple_of(length) {
            return Err(format!("byte {at} of shared memory is no multiple of {length}"));
        }
        self.bytes.get_mut(at..at + length).ok_or_else(|| format!("byte {at} of {all} in shared memory"))
    }

    pub(crate) fn load(&mut self, thread: usize, address: u64, length: usize) -> Result<Bytes, Fault> {
        let mut bytes = Bytes::default();
        for (to, byte) in bytes.iter_mut().zip(self.place(address, length)?) {
            if byte.written.by_others(thread) {
                return Err(format!(
                    "byte {address} of shared memory is read, with no barrier since another thread wrote it"
                ));
            }
            byte.read = byte.read.and(thread);
            *to = byte.value.ok_or_else(|| format!("byte {address} of shared memory is read before it is written"))?;
        }
        Ok(bytes)
    }

    /// Writes bytes; nothing where they are still on their way.
    pub(crate) fn store(
        &mut self,
        thread: usize,
        address: u64,
        length: usize,
        bytes: Option<&[u8]>,
    ) -> Result<(), Fault> {
        for (i, byte) in self.place(address, length)?.iter_mut().enumerate() {
            if byte.read.by_others(thread) || byte.written.by_others(thread) {
                return Err(format!(
                    "byte {address} of shared memory is written, with no barrier since another thread used it"
                ));
            }
            byte.written = byte.written.and(thread);
            byte.value = bytes.map(|bytes| bytes[i]);
        }
        Ok(())
    }
}
