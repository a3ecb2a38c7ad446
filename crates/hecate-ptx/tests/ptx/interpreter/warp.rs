//! Instructions that all 32 lanes of a warp do together.

use super::{
    Block,
    memory::Fault,
    parse::{Action, Instruction, Operand},
    scalar::half_to_f32,
};

/// Whether an instruction waits for the whole warp.
pub(crate) fn is_collective(instruction: &Instruction) -> bool {
    matches!(instruction.action, Action::Shuffle | Action::LoadMatrices | Action::Multiply)
}

impl Block<'_> {
    /// Does an instruction with the lanes of one warp, which begins with thread `first`.
    pub(crate) fn collective(&mut self, first: usize, instruction: &Instruction) -> Result<(), Fault> {
        match instruction.action {
            Action::Shuffle => self.shuffle(first, instruction),
            Action::LoadMatrices => self.load_matrices(first, instruction),
            _ => self.multiply(first, instruction),
        }
    }

    fn shuffle(&mut self, first: usize, instruction: &Instruction) -> Result<(), Fault> {
        let [d, a, b, _, mask] = instruction.operands.as_slice() else { return Err("operands of a shuffle".into()) };
        if self.value(first, mask)? != 0xffff_ffff {
            return Err("a shuffle of some lanes".into());
        }
        let values: Vec<u64> = (0..32).map(|lane| self.value(first + lane, a)).collect::<Result<_, _>>()?;
        for lane in 0..32 {
            let other = self.value(first + lane, b)? as usize;
            let from = if instruction.name[2] == "bfly" { lane ^ other } else { other };
            let value = *values.get(from).ok_or_else(|| format!("lane {from} of a warp"))?;
            self.set(first + lane, d, value)?;
        }
        Ok(())
    }

    /// Lane `l` gives the address of row `l % 8` of matrix `l / 8`, and gets two neighbours of row `l / 4` of each.
    fn load_matrices(&mut self, first: usize, instruction: &Instruction) -> Result<(), Fault> {
        let [Operand::Vector(d), address] = instruction.operands.as_slice() else { return Err("operands".into()) };
        let transposed = instruction.name.iter().any(|word| word == "trans");
        let mut rows = Vec::new();
        for lane in 0..32 {
            let address = self.address(first + lane, address)?;
            let bytes = self.shared.load(first + lane, address, 16)?;
            rows.push(bytes.chunks(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 8).collect::<Vec<_>>());
        }
        for (lane, (matrix, d)) in (0..32).flat_map(|lane| d.iter().enumerate().map(move |d| (lane, d))) {
            let (row, column) = (lane / 4, 2 * (lane % 4));
            let at = |r: usize, c: usize| if transposed { rows[8 * matrix + c][r] } else { rows[8 * matrix + r][c] };
            self.threads[first + lane].registers[*d] = Some(at(row, column) | at(row, column + 1) << 16);
        }
        Ok(())
    }

    /// `D = A B + D` of 16×16, 16×8 and 16×8, summed in f32 along the 16 columns of A.
    fn multiply(&mut self, first: usize, instruction: &Instruction) -> Result<(), Fault> {
        let vectors: Vec<&Vec<usize>> = instruction
            .operands
            .iter()
            .filter_map(|o| if let Operand::Vector(v) = o { Some(v) } else { None })
            .collect();
        let [d, a, b, c] = vectors.as_slice() else { return Err("operands of a product".into()) };
        let wide = |bits: u64| match instruction.name[7].as_str() {
            "f16" => half_to_f32(bits as u16),
            _ => f32::from_bits((bits as u32) << 16),
        };
        let (mut left, mut right) = ([[0f32; 16]; 16], [[0f32; 8]; 16]);
        for lane in 0..32 {
            let (group, pair) = (lane / 4, 2 * (lane % 4));
            for half in 0..2 {
                let part = |bits: u64| wide(bits >> (16 * half) & 0xffff);
                for (i, register) in a.iter().enumerate() {
                    // Upper left, lower left, upper right, lower right.
                    left[group + 8 * (i % 2)][pair + half + 8 * (i / 2)] =
                        part(self.register(first + lane, *register)?);
                }
                for (i, register) in b.iter().enumerate() {
                    right[pair + half + 8 * i][group] = part(self.register(first + lane, *register)?);
                }
            }
        }
        for (lane, i) in (0..32).flat_map(|lane| (0..4).map(move |i| (lane, i))) {
            let (row, column) = (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2);
            let before = f32::from_bits(self.register(first + lane, c[i])? as u32);
            let sum = (0..16).fold(before, |sum, k| left[row][k].mul_add(right[k][column], sum));
            self.threads[first + lane].registers[d[i]] = Some(sum.to_bits().into());
        }
        Ok(())
    }
}
