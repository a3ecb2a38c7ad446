//! Runs kernels on a CPU, as their text says: all threads of a block, barriers, shared memory, shuffles, tensor cores.
//!
//! It is stricter than a GPU. It is a fault to read a register or a byte that nobody wrote, to pass an array's end, to write an
//! output twice, to use shared memory of another thread without a barrier, and to come to a barrier or a shuffle alone.

mod memory;
mod parse;
pub(crate) mod scalar;
mod warp;

use crate::gpu;
use hecate_ptx::Module;
use memory::{Bytes, Fault, Global, Shared};
use parse::{Action, Instruction, Operand, Program};
use std::collections::{HashMap, VecDeque};

/// Most instructions of a thread: more is a loop without end.
const STEPS: usize = 10_000_000;

/// What a launch passes for a parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    Address(u64),
    U32(u32),
    U64(u64),
}

impl From<u32> for Argument {
    fn from(value: u32) -> Self {
        Self::U32(value)
    }
}

/// A GPU's memory, and what runs on it.
#[derive(Debug, Default)]
pub(crate) struct Device {
    memory: Global,
    /// What a GPU left of arrays, by their addresses.
    on_gpu: HashMap<u64, Vec<u8>>,
}

impl Device {
    /// An array that kernels read.
    pub(crate) fn input<const N: usize>(&mut self, bytes: impl IntoIterator<Item = [u8; N]>) -> Argument {
        let bytes = bytes.into_iter().flatten().collect();
        Argument::Address(self.memory.array(bytes, false))
    }

    /// An array that kernels write, of bytes that are NaN until then.
    pub(crate) fn output(&mut self, bytes: usize) -> Argument {
        Argument::Address(self.memory.array(vec![0xff; bytes], true))
    }

    /// Elements of an array, from their bytes.
    pub(crate) fn read<T, const N: usize>(&self, array: Argument, element: fn([u8; N]) -> T) -> Vec<T> {
        let Argument::Address(address) = array else { panic!("{array:?} is no array") };
        let bytes = self.on_gpu.get(&address).map_or(self.memory.bytes(address), Vec::as_slice);
        bytes.chunks(N).map(|bytes| element(bytes.try_into().expect("whole elements"))).collect()
    }

    /// Runs all blocks of a grid, one after another; then on a GPU, where there is one.
    pub(crate) fn launch(&mut self, module: &Module, grid: [u32; 3], arguments: &[Argument]) -> Result<(), Fault> {
        let program = Program::parse(module.text());
        assert_eq!(program.entry, module.name(), "the name of the entry");
        assert_eq!(program.block, module.block(), "the shape of a block");
        assert_eq!(program.shared, module.shared_bytes(), "bytes of shared memory");
        let types: Vec<&str> = program.parameters.iter().map(|(_, ty)| ty.as_str()).collect();
        let passed: Vec<&str> =
            arguments.iter().map(|argument| if let Argument::U32(_) = argument { "u32" } else { "u64" }).collect();
        assert_eq!(types, passed, "arguments of {}", module.name());
        let given: Vec<gpu::Given> = arguments.iter().map(|&argument| (argument, self.bytes(argument))).collect();
        for at in 0..grid.iter().product::<u32>() {
            let index = [at % grid[0], at / grid[0] % grid[1], at / grid[0] / grid[1]];
            Block::new(&program, &mut self.memory, arguments, index, grid).run()?;
        }
        // Only what is right by the interpreter: a GPU may not come back from the rest.
        for (argument, left) in arguments.iter().zip(gpu::launch(module, grid, &given).unwrap_or_default()) {
            if let (Argument::Address(address), Some(bytes)) = (argument, left) {
                self.on_gpu.insert(*address, bytes);
            }
        }
        Ok(())
    }

    /// What stands in an array now; none of what is a number.
    fn bytes(&self, argument: Argument) -> Option<Vec<u8>> {
        match argument {
            Argument::Address(address) => Some(self.memory.bytes(address).to_vec()),
            Argument::U32(_) | Argument::U64(_) => None,
        }
    }
}

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Running,
    /// At an instruction that waits for others.
    Waiting,
    Ended,
}

/// A copy to shared memory that may not have ended: where to, and what.
type Copy = (u64, Bytes);

#[derive(Clone, Debug)]
pub(crate) struct Thread {
    at: usize,
    pub(crate) registers: Vec<Option<u64>>,
    state: State,
    steps: usize,
    /// Copies of groups that were made, and those that are in none yet.
    groups: VecDeque<Vec<Copy>>,
    copies: Vec<Copy>,
}

/// A block that runs.
#[derive(Debug)]
pub(crate) struct Block<'a> {
    program: &'a Program,
    memory: &'a mut Global,
    arguments: &'a [Argument],
    pub(crate) shared: Shared,
    pub(crate) threads: Vec<Thread>,
    index: [u32; 3],
    grid: [u32; 3],
}

impl<'a> Block<'a> {
    fn new(
        program: &'a Program,
        memory: &'a mut Global,
        arguments: &'a [Argument],
        index: [u32; 3],
        grid: [u32; 3],
    ) -> Self {
        let registers = vec![None; program.registers];
        let thread =
            Thread { at: 0, registers, state: State::Running, steps: 0, groups: VecDeque::new(), copies: Vec::new() };
        let threads = vec![thread; program.block.iter().product::<u32>() as usize];
        Self { program, memory, arguments, shared: Shared::new(program.shared), threads, index, grid }
    }

    /// Runs threads until all have ended. Where none runs, a warp or the block must be able to go on.
    fn run(&mut self) -> Result<(), Fault> {
        while self.threads.iter().any(|thread| thread.state != State::Ended) {
            for thread in 0..self.threads.len() {
                self.go(thread)?;
            }
            let mut moved = false;
            for first in (0..self.threads.len()).step_by(32) {
                moved |= self.warp(first)?;
            }
            if !moved && self.threads.iter().any(|thread| thread.state != State::Ended) {
                self.barrier()?;
            }
        }
        Ok(())
    }

    /// Runs a thread until it waits or ends.
    fn go(&mut self, thread: usize) -> Result<(), Fault> {
        let program = self.program;
        while self.threads[thread].state == State::Running {
            let instruction = &program.instructions[self.threads[thread].at];
            let step = self.step(thread, instruction);
            step.map_err(|fault| format!("{fault}: thread {thread}, `{}`", instruction.line))?;
            self.threads[thread].steps += 1;
            if self.threads[thread].steps > STEPS {
                return Err(format!("no end of thread {thread} at `{}`", instruction.line));
            }
        }
        Ok(())
    }

    /// Does what a warp waits for, if it does; says so.
    fn warp(&mut self, first: usize) -> Result<bool, Fault> {
        let lanes = first..self.threads.len().min(first + 32);
        let program = self.program;
        let next = |thread: &Thread| program.instructions.get(thread.at);
        let waits = |thread: &&Thread| thread.state == State::Waiting && next(thread).is_some_and(warp::is_collective);
        let Some(some) = self.threads[lanes.clone()].iter().find(waits) else { return Ok(false) };
        let (at, instruction) = (some.at, &program.instructions[some.at]);
        if lanes.len() < 32 || !self.threads[lanes.clone()].iter().all(|thread| waits(&thread) && thread.at == at) {
            return Err(format!("not all lanes come to `{}`", instruction.line));
        }
        self.collective(first, instruction).map_err(|fault| format!("{fault}: `{}`", instruction.line))?;
        lanes.for_each(|thread| self.resume(thread));
        Ok(true)
    }

    fn barrier(&mut self) -> Result<(), Fault> {
        let at = self.threads[0].at;
        if !self.threads.iter().all(|thread| thread.state == State::Waiting && thread.at == at) {
            return Err("not all threads come to a barrier".into());
        }
        self.shared.barrier();
        (0..self.threads.len()).for_each(|thread| self.resume(thread));
        Ok(())
    }

    fn resume(&mut self, thread: usize) {
        self.threads[thread].at += 1;
        self.threads[thread].state = State::Running;
    }

    pub(crate) fn register(&self, thread: usize, register: usize) -> Result<u64, Fault> {
        self.threads[thread].registers[register].ok_or_else(|| "a register is read before it is written".into())
    }

    /// What an operand is for a thread.
    pub(crate) fn value(&self, thread: usize, operand: &Operand) -> Result<u64, Fault> {
        match operand {
            Operand::Register(register) => self.register(thread, *register),
            Operand::Bits(bits) => Ok(*bits),
            Operand::Special(name) => {
                let [bx, by, _] = self.program.block;
                let thread = thread as u32;
                let (name, axis) = name.split_once('.').ok_or("a special register")?;
                let axis = ["x", "y", "z"].iter().position(|letter| *letter == axis).ok_or("an axis")?;
                Ok(match name {
                    "tid" => [thread % bx, thread / bx % by, thread / bx / by][axis],
                    "ctaid" => self.index[axis],
                    "nctaid" => self.grid[axis],
                    _ => return Err(format!("there is no {name}")),
                }
                .into())
            }
            _ => Err(format!("{operand:?} is no value")),
        }
    }

    pub(crate) fn address(&self, thread: usize, operand: &Operand) -> Result<u64, Fault> {
        let Operand::Address(base, offset) = operand else { return Err(format!("{operand:?} is no address")) };
        Ok(self.register(thread, *base)? + offset)
    }

    pub(crate) fn set(&mut self, thread: usize, operand: &Operand, value: u64) -> Result<(), Fault> {
        let Operand::Register(register) = operand else { return Err(format!("{operand:?} is no register")) };
        self.threads[thread].registers[*register] = Some(value);
        Ok(())
    }

    /// One instruction of one thread; its predicate may keep it from having an effect.
    fn step(&mut self, thread: usize, instruction: &Instruction) -> Result<(), Fault> {
        if let Some((predicate, wanted)) = instruction.guard
            && (self.register(thread, predicate)? != 0) != wanted
        {
            self.threads[thread].at += 1;
            return Ok(());
        }
        if warp::is_collective(instruction) || matches!(instruction.action, Action::Barrier) {
            self.threads[thread].state = State::Waiting;
            return Ok(());
        }
        self.threads[thread].at += 1;
        match (instruction.action, instruction.operands.as_slice()) {
            (Action::End, []) => self.threads[thread].state = State::Ended,
            (Action::Branch, [Operand::Label(at)]) => self.threads[thread].at = *at,
            (Action::Load(is_shared, width), [d, from]) => self.load(thread, (is_shared, width), d, from)?,
            (Action::Store(is_shared, width), [to, value]) => self.store(thread, (is_shared, width), to, value)?,
            (Action::Copy | Action::Commit | Action::Wait, operands) => self.copy(thread, operands)?,
            (Action::Pack, [d, Operand::Vector(halves)]) => {
                let value = self.register(thread, halves[0])? | self.register(thread, halves[1])? << 16;
                self.set(thread, d, value)?;
            }
            (Action::Compute(compute), [d, operands @ ..]) => {
                let mut values = [0; 4];
                for (value, operand) in values.iter_mut().zip(operands) {
                    *value = self.value(thread, operand)?;
                }
                self.set(thread, d, compute(&values[..operands.len()]))?;
            }
            _ => return Err("operands of another instruction".into()),
        }
        Ok(())
    }

    fn load(
        &mut self,
        thread: usize,
        (is_shared, width): (bool, usize),
        d: &Operand,
        from: &Operand,
    ) -> Result<(), Fault> {
        if let Operand::Parameter(at) = from {
            let value = match self.arguments[*at] {
                Argument::Address(value) | Argument::U64(value) => value,
                Argument::U32(value) => value.into(),
            };
            return self.set(thread, d, value);
        }
        let registers = registers(d);
        let (address, length) = (self.address(thread, from)?, width * registers.len());
        let bytes =
            if is_shared { self.shared.load(thread, address, length)? } else { self.memory.load(address, length)? };
        for (register, bytes) in registers.iter().zip(bytes.chunks(width)) {
            let value = bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
            self.threads[thread].registers[*register] = Some(value);
        }
        Ok(())
    }

    fn store(
        &mut self,
        thread: usize,
        (is_shared, width): (bool, usize),
        to: &Operand,
        value: &Operand,
    ) -> Result<(), Fault> {
        let address = self.address(thread, to)?;
        let values = match value {
            Operand::Vector(list) => list.iter().map(|r| self.register(thread, *r)).collect::<Result<Vec<_>, _>>()?,
            value => vec![self.value(thread, value)?],
        };
        let mut bytes = Bytes::default();
        for (bytes, value) in bytes.chunks_mut(width).zip(&values) {
            bytes.copy_from_slice(&value.to_le_bytes()[..width]);
        }
        let length = width * values.len();
        if is_shared {
            self.shared.store(thread, address, length, Some(&bytes[..length]))
        } else {
            self.memory.store(address, &bytes[..length])
        }
    }

    /// Copies of 16 bytes are there when a thread has waited for them, and not before. An operand list of four starts one,
    /// of none makes a group, of one waits.
    fn copy(&mut self, thread: usize, operands: &[Operand]) -> Result<(), Fault> {
        match operands {
            [to, from, _, bytes] => {
                let (to, from) = (self.address(thread, to)?, self.address(thread, from)?);
                let copied = match self.value(thread, bytes)? {
                    0 => Bytes::default(),
                    16 => self.memory.load(from, 16)?,
                    other => return Err(format!("{other} bytes of 16")),
                };
                self.shared.store(thread, to, 16, None)?;
                self.threads[thread].copies.push((to, copied));
            }
            [pending] => {
                let pending = self.value(thread, pending)? as usize;
                while self.threads[thread].groups.len() > pending {
                    for (to, bytes) in self.threads[thread].groups.pop_front().unwrap_or_default() {
                        self.shared.store(thread, to, 16, Some(&bytes))?;
                    }
                }
            }
            _ => {
                let thread = &mut self.threads[thread];
                thread.groups.push_back(std::mem::take(&mut thread.copies));
            }
        }
        Ok(())
    }
}

fn registers(operand: &Operand) -> &[usize] {
    match operand {
        Operand::Register(register) => std::slice::from_ref(register),
        Operand::Vector(registers) => registers,
        _ => &[],
    }
}
