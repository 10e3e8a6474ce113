//! What a runtime tells at the beginning of a session, read no further than it is of use. A node
//! may have thousands of containers, each with its environment and its mounts, and next to nothing
//! of all that is ever looked at.

use std::str::Utf8Error;

use prost::encoding::{WireType, decode_key, decode_varint};
use prost::{DecodeError, Message};

use super::proto::{Container, LinuxContainer, LinuxDevice, PodSandbox, SynchronizeRequest};

/// What is of use to a plugin when a session begins.
pub trait Outline: Sync {
    /// Whether an annotation of that key is. A pod that has one is told whole; of other pods only
    /// the identifier is. Of a container these annotations are told, its identifier, its pod's, its
    /// name, its state and its device nodes.
    fn concerns(&self, annotation: &str) -> bool;

    /// Whether the container of that identifier is to be told whole.
    fn whole(&self, container: &str) -> bool;
}

/// Bytes that are no message.
#[derive(Debug, thiserror::Error)]
pub(super) enum Malformed {
    #[error(transparent)]
    Message(#[from] DecodeError),
    #[error("a field ends behind its message")]
    Short,
    #[error("a group, which this protocol does not have")]
    Group,
    #[error(transparent)]
    Text(#[from] Utf8Error),
}

/// Reads a part of a synchronisation; without `outline` all of it.
pub(super) fn read(
    bytes: &[u8],
    outline: Option<&dyn Outline>,
) -> Result<SynchronizeRequest, Malformed> {
    let Some(outline) = outline else { return Ok(SynchronizeRequest::decode(bytes)?) };
    let mut request = SynchronizeRequest::default();
    for field in Fields(bytes) {
        match field? {
            (1, Value::Bytes(bytes)) => request.pods.push(pod(bytes, outline)?),
            (2, Value::Bytes(bytes)) => request.containers.push(container(bytes, outline)?),
            (3, Value::Number(more)) => request.more = more != 0,
            _ => {}
        }
    }
    Ok(request)
}

fn pod(bytes: &[u8], outline: &dyn Outline) -> Result<PodSandbox, Malformed> {
    let mut id = "";
    for field in Fields(bytes) {
        match field? {
            (1, Value::Bytes(bytes)) => id = std::str::from_utf8(bytes)?,
            (6, Value::Bytes(entry)) if outline.concerns(pair(entry)?.0) => {
                return Ok(PodSandbox::decode(bytes)?);
            }
            _ => {}
        }
    }
    Ok(PodSandbox { id: id.to_owned(), ..PodSandbox::default() })
}

fn container(bytes: &[u8], outline: &dyn Outline) -> Result<Container, Malformed> {
    let mut told = Container::default();
    for field in Fields(bytes) {
        match field? {
            (1, Value::Bytes(bytes)) => told.id = text(bytes)?,
            (2, Value::Bytes(bytes)) => told.pod_sandbox_id = text(bytes)?,
            (3, Value::Bytes(bytes)) => told.name = text(bytes)?,
            // As protobuf does with a number that is too long for its field.
            #[expect(clippy::cast_possible_truncation)]
            (4, Value::Number(state)) => told.state = state as i32,
            (6, Value::Bytes(entry)) => {
                let (key, value) = pair(entry)?;
                if outline.concerns(key) {
                    told.annotations.insert(key.to_owned(), value.to_owned());
                }
            }
            (11, Value::Bytes(bytes)) => devices(bytes, told.linux.get_or_insert_default())?,
            _ => {}
        }
    }
    if outline.whole(&told.id) { Ok(Container::decode(bytes)?) } else { Ok(told) }
}

fn devices(bytes: &[u8], linux: &mut LinuxContainer) -> Result<(), Malformed> {
    for field in Fields(bytes) {
        if let (2, Value::Bytes(bytes)) = field? {
            linux.devices.push(LinuxDevice::decode(bytes)?);
        }
    }
    Ok(())
}

/// Key and value of an entry of a map.
fn pair(entry: &[u8]) -> Result<(&str, &str), Malformed> {
    let mut pair = ("", "");
    for field in Fields(entry) {
        match field? {
            (1, Value::Bytes(key)) => pair.0 = std::str::from_utf8(key)?,
            (2, Value::Bytes(value)) => pair.1 = std::str::from_utf8(value)?,
            _ => {}
        }
    }
    Ok(pair)
}

fn text(bytes: &[u8]) -> Result<String, Malformed> {
    Ok(std::str::from_utf8(bytes)?.to_owned())
}

/// The fields of a message: number and value (protobuf's "Encoding").
struct Fields<'a>(&'a [u8]);

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Of fixed length: there is none of use.
    Fixed,
}

impl<'a> Fields<'a> {
    fn take(&mut self, length: u64) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(length).map_err(|_| Malformed::Short)?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn field(&mut self) -> Result<(u32, Value<'a>), Malformed> {
        let (number, wire) = decode_key(&mut self.0)?;
        let value = match wire {
            WireType::Varint => Value::Number(decode_varint(&mut self.0)?),
            WireType::LengthDelimited => {
                let length = decode_varint(&mut self.0)?;
                Value::Bytes(self.take(length)?)
            }
            WireType::SixtyFourBit => self.take(8).map(|_| Value::Fixed)?,
            WireType::ThirtyTwoBit => self.take(4).map(|_| Value::Fixed)?,
            WireType::StartGroup | WireType::EndGroup => return Err(Malformed::Group),
        };
        Ok((number, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::nri::proto::{LinuxNamespace, Mount};

    /// Wants annotations below `ours/`, and the container `whole`.
    struct Ours;

    impl Outline for Ours {
        fn concerns(&self, annotation: &str) -> bool {
            annotation.starts_with("ours/")
        }

        fn whole(&self, container: &str) -> bool {
            container == "whole"
        }
    }

    fn annotations(keys: &[&str]) -> BTreeMap<String, String> {
        keys.iter().map(|&key| (key.to_owned(), "value".to_owned())).collect()
    }

    fn full(id: &str) -> Container {
        let device = |path: &str| LinuxDevice {
            path: path.into(),
            r#type: "c".into(),
            major: 231,
            minor: 192,
            ..LinuxDevice::default()
        };
        Container {
            id: id.into(),
            pod_sandbox_id: "box".into(),
            name: "main".into(),
            state: 3,
            annotations: annotations(&["ours/a", "theirs"]),
            labels: annotations(&["ours/label"]),
            env: vec!["A=1".into()],
            mounts: vec![Mount { destination: "/mnt".into(), ..Mount::default() }],
            linux: Some(LinuxContainer {
                devices: vec![device("/dev/infiniband/uverbs0"), device("/dev/null")],
                namespaces: vec![LinuxNamespace { r#type: "pid".into(), path: String::new() }],
                cgroups_path: "/a".into(),
                ..LinuxContainer::default()
            }),
            pid: 77,
            ..Container::default()
        }
    }

    fn pod(id: &str, keys: &[&str]) -> PodSandbox {
        let annotations = annotations(keys);
        PodSandbox { id: id.into(), name: "pod".into(), annotations, pid: 7, ..Default::default() }
    }

    #[test]
    fn what_is_of_use_is_read() {
        let request = SynchronizeRequest {
            pods: vec![pod("1", &["theirs", "zz"]), pod("2", &["ours/a", "theirs"]), pod("3", &[])],
            containers: vec![full("part"), full("whole")],
            more: true,
        };
        let bytes = request.encode_to_vec();
        assert_eq!(read(&bytes, None).unwrap(), request);
        let told = read(&bytes, Some(&Ours)).unwrap();
        let bare = |id: &str| PodSandbox { id: id.into(), ..PodSandbox::default() };
        assert_eq!(told.pods, [bare("1"), request.pods[1].clone(), bare("3")]);
        let linux = request.containers[0].linux.as_ref().unwrap();
        let part = Container {
            id: "part".into(),
            pod_sandbox_id: "box".into(),
            name: "main".into(),
            state: 3,
            annotations: annotations(&["ours/a"]),
            linux: Some(LinuxContainer { devices: linux.devices.clone(), ..Default::default() }),
            ..Container::default()
        };
        assert_eq!(told.containers, [part, request.containers[1].clone()]);
        assert!(told.more);
    }

    #[test]
    fn what_is_cut_short_or_no_text_is_an_error() {
        let request = SynchronizeRequest {
            pods: vec![pod("1", &["theirs"])],
            containers: vec![full("part")],
            more: true,
        };
        let bytes = request.encode_to_vec();
        let ends = [1, 3, bytes.len() - 3, bytes.len() - 1];
        for end in ends {
            assert!(read(&bytes[..end], Some(&Ours)).is_err(), "{end}");
        }
        let latin1 = [0x0a, 3, 0x0a, 1, 0xff];
        assert!(matches!(read(&latin1, Some(&Ours)), Err(Malformed::Text(_))));
        assert!(matches!(read(&[0x0b], Some(&Ours)), Err(Malformed::Group)));
        let long = [0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert!(matches!(read(&long, Some(&Ours)), Err(Malformed::Short)));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes, Some(&Ours));
        }
    }
}
