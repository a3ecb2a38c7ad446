//! What a server counts, in the text format of Prometheus.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// A number that anybody may read while somebody counts.
///
/// Numbers are counted by one thread and told by another. Nothing else is ordered by them.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// So many more.
    pub(crate) fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Relaxed);
    }

    /// So many now.
    pub(crate) fn set(&self, now: usize) {
        self.0.store(now as u64, Relaxed);
    }

    /// The number of this moment.
    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Upper ends of the classes of times, seconds.
const CLASSES: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// How many times were how long.
/// Classes are those of a chat: from a millisecond, which no reader sees, to ten seconds, after which nobody waits.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// Of each class, and last of those above all.
    classes: [Count; CLASSES.len() + 1],
    /// Their sum.
    microseconds: Count,
}

impl Times {
    /// Another one.
    pub(crate) fn add(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let class = CLASSES.iter().position(|&end| seconds <= end).unwrap_or(CLASSES.len());
        self.classes[class].add(1);
        self.microseconds.add(time.as_micros() as usize);
    }

    /// Lines of a histogram, whose classes include all lower ones.
    fn write(&self, out: &mut String, name: &str, help: &str) {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        // Each line counts all times up to its end.
        let mut sum = 0;
        let ends = CLASSES.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        for (count, end) in self.classes.iter().zip(ends) {
            sum += count.get();
            let _ = writeln!(out, "{name}_bucket{{le=\"{end}\"}} {sum}");
        }
        let seconds = self.microseconds.get() as f64 / 1e6;
        let _ = writeln!(out, "{name}_sum {seconds}\n{name}_count {sum}");
    }
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Requests by address and status.
    answered: Mutex<BTreeMap<(String, u16), u64>>,
    /// Tokens of prompts, and tokens drawn.
    pub(crate) read: Count,
    pub(crate) written: Count,
    /// Prompts that went on from a kept state, and tokens of them that were not read again.
    pub(crate) prefix_hits: Count,
    pub(crate) prefix_tokens: Count,
    /// Kept states of this moment, and their bytes.
    pub(crate) prefix_states: Count,
    pub(crate) prefix_bytes: Count,
    /// Texts whose reader left before their end.
    pub(crate) cancelled: Count,
    /// Texts of this moment.
    pub(crate) running: Count,
    pub(crate) waiting: Count,
    /// Sessions of this moment.
    pub(crate) in_memory: Count,
    pub(crate) on_disk: Count,
    /// From a request to its first token, and of a round in which tokens were drawn.
    pub(crate) first_token: Times,
    pub(crate) step: Times,
}

impl Metrics {
    /// Another request to this address of the router was answered with this status.
    pub(crate) fn answered(&self, path: &str, status: u16) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        *answered.entry((path.to_owned(), status)).or_default() += 1;
    }

    /// All numbers as text.
    pub(crate) fn text(&self) -> String {
        let mut out =
            String::from("# HELP hecate_requests_total Requests answered.\n# TYPE hecate_requests_total counter\n");
        let answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for ((path, status), count) in answered {
            let _ = writeln!(out, "hecate_requests_total{{path=\"{path}\",status=\"{status}\"}} {count}");
        }
        // Counters only grow; gauges are of this moment.
        for (name, kind, help, count) in [
            ("hecate_tokens_read_total", "counter", "Tokens of prompts read.", &self.read),
            ("hecate_tokens_written_total", "counter", "Tokens written.", &self.written),
            ("hecate_prefix_hits_total", "counter", "Prompts whose beginning was read before.", &self.prefix_hits),
            ("hecate_prefix_tokens_total", "counter", "Tokens of prompts not read again.", &self.prefix_tokens),
            ("hecate_prefix_states", "gauge", "States kept after beginnings of prompts.", &self.prefix_states),
            ("hecate_prefix_bytes", "gauge", "Bytes of these states.", &self.prefix_bytes),
            ("hecate_texts_cancelled_total", "counter", "Texts whose reader left.", &self.cancelled),
            ("hecate_texts_running", "gauge", "Texts that are read or written now.", &self.running),
            ("hecate_texts_waiting", "gauge", "Texts that wait for a place.", &self.waiting),
            ("hecate_sessions_in_memory", "gauge", "Sessions in memory.", &self.in_memory),
            ("hecate_sessions_on_disk", "gauge", "Sessions on the disk alone.", &self.on_disk),
        ] {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {}", count.get());
        }
        self.first_token.write(&mut out, "hecate_first_token_seconds", "From a request to its first token.");
        self.step.write(&mut out, "hecate_step_seconds", "A step, in which every running text gets a token.");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_include_lower_ones() {
        let metrics = Metrics::default();
        [1, 3, 30_000].into_iter().for_each(|ms| metrics.step.add(Duration::from_millis(ms)));
        metrics.answered("/health", 200);
        let text = metrics.text();
        for line in [
            "hecate_step_seconds_bucket{le=\"0.001\"} 1",
            "hecate_step_seconds_bucket{le=\"0.005\"} 2",
            "hecate_step_seconds_bucket{le=\"10\"} 2",
            "hecate_step_seconds_bucket{le=\"+Inf\"} 3",
            "hecate_step_seconds_sum 30.004",
            "hecate_step_seconds_count 3",
            "hecate_requests_total{path=\"/health\",status=\"200\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
