//! Which rows of which arrays are which parameters.

use super::arrays::{Array, Arrays};
use crate::{Error, Result, architectures::Join};
use hecate_core::{Shape, memory};
use std::collections::HashMap;

/// Names that a message tells before it counts the others.
const TOLD: usize = 3;

/// Rows of an array that are rows of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) array: usize,
    pub(super) array_row: usize,
    pub(super) parameter: usize,
    pub(super) parameter_row: usize,
    pub(super) rows: usize,
}

/// Where each parameter's rows are.
#[derive(Debug)]
pub(super) struct Plan {
    /// Names and shapes.
    parameters: Vec<(String, Shape)>,
    by_name: HashMap<String, usize>,
    /// In the order of the parameter's rows.
    of_parameter: Vec<Vec<Piece>>,
    /// In the order of the array's rows; none of arrays without use.
    of_array: Vec<Vec<Piece>>,
}

impl Plan {
    /// Finds all parameters: by their own names, or as `joins` say.
    ///
    /// # Errors
    /// Which arrays are missing, left over, or of another shape or type.
    pub(super) fn new(parameters: Vec<(String, Shape)>, arrays: &Arrays, joins: &[Join]) -> Result<Self, String> {
        let by_name = parameters.iter().enumerate().map(|(i, (name, _))| (name.clone(), i)).collect();
        let of_parameter = vec![Vec::new(); parameters.len()];
        let mut plan = Self { parameters, by_name, of_parameter, of_array: vec![Vec::new(); arrays.all().len()] };
        let mut missing = Vec::new();
        let mut covered = vec![false; plan.parameters.len()];
        for join in joins {
            plan.join(join, arrays, (&mut covered, &mut missing))?;
        }
        for parameter in (0..covered.len()).filter(|&parameter| !covered[parameter]) {
            plan.by_own_name(parameter, arrays, &mut missing)?;
        }
        told("lacks", missing, "use the configuration that the weights came with, or a whole copy of them")?;
        let used = arrays.all().iter().zip(&plan.of_array);
        let left = used.filter(|(array, pieces)| pieces.is_empty() && !array.is_ignored());
        let left = left.map(|(array, _)| array.stored.clone()).collect();
        told("holds", left, "which the model of its configuration does not have: it is of another family or form")?;
        plan.check_types(arrays)?;
        Ok(plan)
    }

    /// Takes the array of a parameter's own name, unless something else is made of that.
    fn by_own_name(&mut self, parameter: usize, arrays: &Arrays, missing: &mut Vec<String>) -> Result<(), String> {
        let (name, shape) = &self.parameters[parameter];
        let Some(array) = arrays.find(name).filter(|&array| self.of_array[array].is_empty()) else {
            missing.push(name.clone());
            return Ok(());
        };
        check_shape(&arrays.all()[array], shape.axes())?;
        let [rows, _] = arrays.all()[array].rows();
        self.add(Piece { array, array_row: 0, parameter, parameter_row: 0, rows });
        Ok(())
    }

    /// Takes the arrays of a join, whose rows are those of its parameters. Of arrays that are missing the parameters are not
    /// looked for again.
    fn join(
        &mut self,
        join: &Join,
        arrays: &Arrays,
        (covered, missing): (&mut [bool], &mut Vec<String>),
    ) -> Result<(), String> {
        let parameters: Option<Vec<_>> = join.parameters.iter().map(|name| self.by_name.get(name).copied()).collect();
        // Another block's, of a model whose blocks are unlike each other.
        let Some(parameters) = parameters else { return Ok(()) };
        parameters.iter().for_each(|&parameter| covered[parameter] = true);
        missing.extend(join.tensors.iter().filter(|name| arrays.find(name).is_none()).cloned());
        let found: Option<Vec<_>> = join.tensors.iter().map(|name| arrays.find(name)).collect();
        let Some(found) = found else { return Ok(()) };
        self.check_rows(join, arrays, (&found, &parameters))?;
        let shares: Vec<_> =
            parameters.iter().map(|&parameter| (parameter, self.rows(parameter) / join.turns)).collect();
        let mut places = Places { found: &found, arrays, at: 0, row: 0 };
        for turn in 0..join.turns {
            for &(parameter, share) in &shares {
                for (array, array_row, offset, rows) in places.take(share) {
                    let parameter_row = turn * share + offset;
                    self.add(Piece { array, array_row, parameter, parameter_row, rows });
                }
            }
        }
        Ok(())
    }

    /// Refuses arrays with other rows than those of the parameters together.
    fn check_rows(
        &self,
        join: &Join,
        arrays: &Arrays,
        (found, parameters): (&[usize], &[usize]),
    ) -> Result<(), String> {
        let all: usize = parameters.iter().map(|&parameter| self.rows(parameter)).sum();
        let inside = parameters.first().map_or(&[][..], |&first| &self.parameters[first].1.axes()[1..]);
        for &array in found {
            let array = &arrays.all()[array];
            let own = if found.len() == 1 { all } else { array.rows()[0] };
            check_shape(array, &[&[own], inside].concat())?;
        }
        let held: usize = found.iter().map(|&array| arrays.all()[array].rows()[0]).sum();
        if held == all {
            return Ok(());
        }
        Err(format!("`{}` have {held} rows, expected {all}", join.tensors.join("`, `")))
    }

    /// Rows of a parameter.
    fn rows(&self, parameter: usize) -> usize {
        self.parameters[parameter].1.axes().first().copied().unwrap_or(0)
    }

    /// Adds a piece behind those of its array, and of its parameter.
    fn add(&mut self, piece: Piece) {
        self.of_parameter[piece.parameter].push(piece);
        self.of_array[piece.array].push(piece);
    }

    /// Refuses parameters in other types than floats of 16 and 32 bits.
    fn check_types(&self, arrays: &Arrays) -> Result<(), String> {
        match self.arrays().map(|array| &arrays.all()[array]).find(|array| array.dtype.unit().is_none()) {
            Some(Array { stored, dtype, .. }) => Err(format!(
                "`{stored}` is stored as {dtype}, expected f32, f16 or bf16: quantised weights of others are read from GGUF files \
                 alone; use the model as it was before"
            )),
            None => Ok(()),
        }
    }

    /// Numbers of the arrays that parameters are in.
    pub(super) fn arrays(&self) -> impl Iterator<Item = usize> {
        self.of_array.iter().enumerate().filter(|(_, pieces)| !pieces.is_empty()).map(|(array, _)| array)
    }

    /// Names and shapes of all parameters.
    pub(super) fn parameters(&self) -> &[(String, Shape)] {
        &self.parameters
    }

    /// The pieces of an array, in the order of its rows.
    pub(super) fn of_array(&self, array: usize) -> &[Piece] {
        &self.of_array[array]
    }

    /// The pieces of a parameter, in the order of its rows.
    pub(super) fn of_parameter(&self, parameter: usize) -> &[Piece] {
        &self.of_parameter[parameter]
    }

    /// A parameter's elements, read from their files.
    ///
    /// # Errors
    /// [`Error::Io`]; too little memory.
    pub(super) fn values(&self, arrays: &Arrays, name: &str) -> Result<Vec<f32>> {
        let Some(&parameter) = self.by_name.get(name) else {
            return Err(Error::config("parameter", format!("`{name}`"), "one of those that were looked for"));
        };
        let mut values = memory::with_capacity("weights", self.parameters[parameter].1.count())?;
        for piece in &self.of_parameter[parameter] {
            let rows = piece.array_row..piece.array_row + piece.rows;
            arrays.read_rows(&arrays.all()[piece.array], rows, &mut values)?;
        }
        Ok(values)
    }
}

/// Goes through the rows of several arrays, one array after another.
struct Places<'a> {
    found: &'a [usize],
    arrays: &'a Arrays,
    /// Which of them.
    at: usize,
    /// The next row in it.
    row: usize,
}

impl Places<'_> {
    /// The next `rows` rows: arrays, first rows in them, how many rows came before, and how many there are.
    fn take(&mut self, rows: usize) -> Vec<(usize, usize, usize, usize)> {
        let (mut taken, mut parts) = (0, Vec::new());
        while taken < rows && self.at < self.found.len() {
            let array = self.found[self.at];
            let now = (self.arrays.all()[array].rows()[0] - self.row).min(rows - taken);
            if now > 0 {
                parts.push((array, self.row, taken, now));
            }
            (taken, self.row) = (taken + now, self.row + now);
            if self.row == self.arrays.all()[array].rows()[0] {
                (self.at, self.row) = (self.at + 1, 0);
            }
        }
        parts
    }
}

/// Refuses an array of another shape.
fn check_shape(array: &Array, expected: &[usize]) -> Result<(), String> {
    if array.shape == expected {
        return Ok(());
    }
    // Another order of axes alone.
    let moved = expected.len() == 3 && array.shape == [expected[0], expected[2], expected[1]];
    let why = match moved {
        true => {
            "its axes are in another order, as in files that were converted for MLX; use the model's original files"
        }
        false => "use the configuration that the weights came with",
    };
    Err(format!(
        "`{}` has shape {}, expected {}; {why}",
        array.stored,
        Shape::from(&array.shape[..]),
        Shape::from(expected)
    ))
}

/// The error of these names, unless there is none.
fn told(verb: &str, names: Vec<String>, why: &str) -> Result<(), String> {
    if names.is_empty() {
        return Ok(());
    }
    let first = names.iter().take(TOLD).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let more = if names.len() > TOLD { format!(" and {} more", names.len() - TOLD) } else { String::new() };
    Err(format!("{verb} {first}{more}; {why}"))
}
