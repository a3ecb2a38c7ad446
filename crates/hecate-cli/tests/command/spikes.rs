//! `hecate spikes`: a network's file in, spikes of each area and a picture out.

use super::harness::Workspace;
use std::{fs, thread::sleep, time::Duration};

/// The power neuron fires in every burst, and drives the two of area 3 one burst later; those of area 7 are never reached.
const NETWORK: &str = r#"{"format": "hecate-spiking 1", "bursts": 40, "power": 12.5,
"areas": [{"id": 1, "uniform": true}, {"id": 3, "uniform": true}, {"id": 7, "uniform": true}],
"neurons": [[1, {"area": 1, "threshold": 10.0}], [2, {"area": 3, "threshold": 10.0}], [5, {"area": 7, "threshold": 10.0}]],
"synapses": [[0, 1, 200, 100, 0], [0, 2, 200, 100, 0]]}"#;

/// A folder with that network.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    fs::write(workspace.path("network.json"), NETWORK).unwrap();
    workspace
}

/// The row of an area: neurons, spikes, and the share of neurons that fire in a burst.
fn row(stdout: &str, area: &str) -> Vec<String> {
    let rows = stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found = rows.into_iter().find(|words| words.first() == Some(&area)).unwrap_or_else(|| panic!("{stdout}"));
    found[1..].iter().map(|&word| word.to_owned()).collect()
}

/// Whatever threads run it.
#[test]
fn a_network_fires_by_area() {
    let workspace = workspace();
    // Each with a picture of its own.
    let outcomes = ["1", "2"].map(|threads| {
        let raster = format!("{threads}.svg");
        let run = workspace.run(&["spikes", "run", "network.json", "--threads", threads, "--raster", &raster]);
        run.succeeded();
        (run.stdout, fs::read_to_string(workspace.path(&raster)).unwrap())
    });
    for (stdout, picture) in &outcomes {
        // The power neuron fires in each of the bursts.
        assert_eq!(row(stdout, "1"), ["1", "40", "100.00", "%"]);
        // Not in the first burst.
        assert_eq!(row(stdout, "3"), ["2", "78", "97.50", "%"]);
        // Nothing reaches them.
        assert_eq!(row(stdout, "7"), ["5", "0", "0.00", "%"]);
        assert!(stdout.contains("118 spikes in 40 bursts of 8 neurons and 2 synapses"), "{stdout}");
        // A point a spike, on a background.
        assert_eq!(picture.matches("<rect").count(), 1 + 118);
    }
    assert_eq!(outcomes[0].1, outcomes[1].1, "threads change the picture");
    // Fewer bursts than the file asks for, and its own picture drawn again.
    let short = workspace.run(&["spikes", "run", "network.json", "--bursts", "3", "--raster", "1.svg"]);
    short.succeeded();
    assert_eq!(
        (row(&short.stdout, "1"), row(&short.stdout, "3")[1].as_str()),
        (vec!["1".to_owned(), "3".into(), "100.00".into(), "%".into()], "4")
    );
    assert_eq!(fs::read_to_string(workspace.path("1.svg")).unwrap().matches("<rect").count(), 1 + 7);
}

/// With what is wrong, where, and the way out.
#[test]
fn what_is_no_network_is_refused() {
    let workspace = workspace();
    let run = |file: &str, more: &[&str]| workspace.run(&[&["spikes", "run", file], more].concat());
    // A file that is not there, one that names no neuron, and one without bursts.
    run("none.json", &[]).failed(1, &["none.json"]);
    fs::write(workspace.path("bad.json"), NETWORK.replace("[0, 2, 200", "[0, 20, 200")).unwrap();
    run("bad.json", &[]).failed(1, &["bad.json", "line 4", "neuron 20"]);
    fs::write(workspace.path("idle.json"), NETWORK.replace("\"bursts\": 40, ", "")).unwrap();
    run("idle.json", &[]).failed(1, &["idle.json", "0 bursts", "--bursts"]);
    run("idle.json", &["--bursts", "2"]).succeeded();
    // Flags.
    run("network.json", &["--bursts", "0"]).failed(2, &["--bursts"]);
    run("network.json", &["--device", "tpu"]).failed(2, &["tpu", "cpu"]);
    run("network.json", &["--device", "reference"]).failed(2, &["reference", "cpu"]);
    run("network.json", &["--threads", "5000"]).failed(1, &["threads", "5000", "4096"]);
    // Nothing of others is replaced, and nothing is run for nothing.
    fs::write(workspace.path("mine.svg"), "<svg></svg>").unwrap();
    run("network.json", &["--raster", "mine.svg"]).failed(1, &["mine.svg", "--raster"]);
    assert_eq!(fs::read_to_string(workspace.path("mine.svg")).unwrap(), "<svg></svg>");
    run("network.json", &["--raster", "nowhere/a.svg"]).failed(1, &["nowhere/a.svg"]);
}

/// One value, two and three of the CPU, and the choice of the command: what is told of spikes and the picture are the same.
#[test]
fn devices_do_not_show() {
    let workspace = workspace();
    let outcome = |device: &str| {
        let run = workspace.run(&["spikes", "run", "network.json", "--device", device, "--raster", "a.svg"]);
        run.succeeded();
        // The last line has a time and the device.
        let (spikes, last) = run.stdout.split_once(" ms a burst on ").expect("a time");
        let spikes = spikes.rsplit_once(", ").expect("a time").0.to_owned();
        let told = last.lines().next().expect("a device").to_owned();
        (spikes, fs::read_to_string(workspace.path("a.svg")).unwrap(), told)
    };
    // What all others are compared with.
    let one = outcome("cpu");
    assert_eq!(one.2, "cpu");
    for (device, told) in [("best", "cpu"), ("cpu,cpu", "cpu,cpu"), ("cpu,cpu,cpu", "cpu,cpu,cpu")] {
        let other = outcome(device);
        assert_eq!((&other.0, &other.1, other.2.as_str()), (&one.0, &one.1, told), "{device}");
    }
}

/// GPUs, where this build has their backends and the machine has them.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
#[test]
fn gpus_do_not_show() {
    let workspace = workspace();
    // The reference is the processor.
    let cpu = workspace.run(&["spikes", "run", "network.json", "--raster", "cpu.svg"]);
    cpu.succeeded();
    for (name, built_in) in [("cuda", cfg!(feature = "cuda")), ("wgpu", cfg!(feature = "wgpu"))] {
        if !built_in {
            continue;
        }
        // One value of the backend, and two that share the network.
        for device in [name.to_owned(), format!("{name},{name}")] {
            let raster = format!("{name}.svg");
            let _ = fs::remove_file(workspace.path(&raster));
            let run = workspace.run(&["spikes", "run", "network.json", "--device", &device, "--raster", &raster]);
            if run.code == Some(1) && run.stderr.contains(&format!("no {name} device")) {
                hecate_conformance::require::skip(name, &run.stderr);
                continue;
            }
            run.succeeded();
            // Counts by area first, since they tell more than pictures.
            assert_eq!([row(&run.stdout, "1"), row(&run.stdout, "3")], [row(&cpu.stdout, "1"), row(&cpu.stdout, "3")]);
            let picture = |file: &str| fs::read_to_string(workspace.path(file)).unwrap();
            assert!(picture(&raster) == picture("cpu.svg"), "{device} draws another picture");
        }
    }
}

/// Small ones: figures are another matter.
#[test]
fn sizes_are_measured() {
    let workspace = Workspace::new();
    let line = ["spikes", "bench", "--neurons", "1000,3000", "--synapses", "10", "--bursts", "20", "--threads", "1"];
    let bench = workspace.run(&line);
    bench.succeeded();
    // Synapses of the larger one, and what two sizes are for.
    assert!(bench.stdout.contains("30,000") && bench.stdout.contains("slope of the fastest"), "{bench:?}");
    // Drawn targets, another share, and parts.
    let line =
        ["spikes", "bench", "--neurons", "900", "--synapses", "3", "--bursts", "9", "--seed", "4", "--firing", "0.5"];
    let drawn = workspace.run(&[&line[..], &["--device", "cpu,cpu"]].concat());
    drawn.succeeded();
    assert!(drawn.stdout.contains("2,700") && drawn.stdout.contains("cpu,cpu"), "{drawn:?}");
    workspace.run(&["spikes", "bench", "--neurons", "0"]).failed(2, &["--neurons"]);
    workspace.run(&["spikes", "bench", "--firing", "0"]).failed(1, &["--firing"]);
    // Refused before memory is taken: more synapses than there can be, and a choice that the CPU has not.
    // The bound is that of synapses.
    let large = ["spikes", "bench", "--neurons", "16000000", "--synapses", "10000"];
    workspace.run(&large).failed(1, &["synapses", "1073741824"]);
    workspace.run(&["spikes", "bench", "--neurons", "100", "--block", "128"]).failed(1, &["block", "128"]);
}

/// Ctrl-C ends a long run with what it has seen.
#[cfg(unix)]
#[test]
fn a_stopped_run_tells_what_it_saw() {
    use nix::{
        sys::signal::{Signal, kill},
        unistd::Pid,
    };
    let workspace = workspace();
    // Nobody waits for so many.
    let line = ["spikes", "run", "network.json", "--bursts", "1000000000000", "--threads", "1", "--raster", "a.svg"];
    let child = workspace.spawn(&line);
    // It listens long before.
    sleep(Duration::from_secs(2));
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let outcome = super::harness::Outcome::new(child.wait_with_output().unwrap());
    assert_eq!(outcome.code, Some(130), "{outcome:?}");
    // The table and the picture are of the bursts that were run.
    assert!(outcome.stdout.contains(" bursts of 8 neurons") && workspace.path("a.svg").exists(), "{outcome:?}");
}
