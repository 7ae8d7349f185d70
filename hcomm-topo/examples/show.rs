//! Prints what is found out about this host, as JSON.
//!
//! `show` looks at the live system, `show FOLDER` at a recorded one. `show --record FOLDER` also
//! writes every file it read below `FOLDER`, in the form that `RecordedSystem` reads.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use hcomm_topo::{
    Family, Interface, InterfaceFilter, LiveSystem, RecordedSystem, System, discover,
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let system: Box<dyn System> = match &arguments[..] {
        [] => Box::new(LiveSystem),
        [flag, folder] if flag == "--record" => Box::new(Recorder {
            root: folder.into(),
        }),
        [folder] if !folder.starts_with('-') => Box::new(RecordedSystem::new(folder)),
        _ => return Err("usage: show [FOLDER | --record FOLDER]".into()),
    };
    let facts = discover(&*system)?;
    println!("{}", serde_json::to_string_pretty(&facts)?);
    match facts.pick_interface(&InterfaceFilter::all(), Family::PreferV4) {
        Ok(pick) => eprintln!("speaks through {}", pick.why),
        Err(error) => eprintln!("{error}"),
    }
    Ok(())
}

/// Folders of links, whose entries are kept as files with their targets.
const LINKS: [&str; 2] = ["/sys/bus/pci/devices", "/sys/class/infiniband"];

/// The live system, whose answers are written to files.
struct Recorder {
    root: PathBuf,
}

impl Recorder {
    fn keep(&self, path: &str, text: &str) -> io::Result<()> {
        let file = self.root.join(path.trim_start_matches('/'));
        fs::create_dir_all(file.parent().unwrap_or_else(|| Path::new(".")))?;
        fs::write(file, text)
    }
}

impl System for Recorder {
    fn read(&self, path: &str) -> io::Result<String> {
        let text = LiveSystem.read(path)?;
        self.keep(path, &text)?;
        Ok(text)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let names = LiveSystem.list(path)?;
        for name in &names {
            // Files are written when they are read. A folder that is only listed gets a file, since
            // archives and git keep no empty ones.
            let entry = format!("{path}/{name}");
            if LINKS.contains(&path) {
                continue;
            }
            if LiveSystem.list(&entry).is_ok() {
                self.keep(&format!("{entry}/.kept"), "")?;
            }
        }
        Ok(names)
    }

    fn link_target(&self, path: &str) -> io::Result<String> {
        let target = LiveSystem.link_target(path)?;
        self.keep(path, &target)?;
        Ok(target)
    }

    fn host_name(&self) -> io::Result<String> {
        let name = LiveSystem.host_name()?;
        self.keep("/proc/sys/kernel/hostname", &name)?;
        Ok(name)
    }

    fn interfaces(&self) -> io::Result<Vec<Interface>> {
        let interfaces = LiveSystem.interfaces()?;
        let text = serde_json::to_string_pretty(&interfaces)?;
        self.keep(RecordedSystem::INTERFACES, &text)?;
        Ok(interfaces)
    }
}
