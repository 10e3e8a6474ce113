//! Which addresses the sub-interfaces of a pod are to have, as its annotations say: pure.

use std::collections::HashMap;

use super::refused;
use crate::grant::Wanted as Child;
use crate::inventory::Prefix;
use crate::netns::addresses::Wanted;
use crate::request::{AddressRequest, FixedAddress, Key, Request, SUFFIX};

/// What is wanted for each adapter, of containers with the sub-interfaces that each of them gets.
///
/// # Errors
/// An adapter is to have different addresses, or none is named for it, or one is named that no
/// container of the pod gets: a sentence.
pub(super) fn wanted(chosen: &[(&Request, Vec<Child>)]) -> Result<HashMap<String, Wanted>, String> {
    let mut all: HashMap<String, Wanted> = HashMap::new();
    for (request, children) in chosen {
        for child in children {
            let address = of(request, child, children.len())?;
            let before = all.entry(child.hca.clone()).or_insert_with(|| address.clone());
            if *before != address {
                return Err(refused(
                    child.kind,
                    &format!("{}: its containers ask for different addresses", child.hca),
                ));
            }
        }
    }
    let fixed = chosen.iter().flat_map(|(request, _)| request.address.fixed());
    let unused = fixed.filter_map(|one| Some((one.hca.as_ref()?, one.address)));
    let unused = unused.filter(|(hca, _)| !all.contains_key(*hca)).min();
    match unused {
        None => Ok(all),
        Some((hca, address)) => {
            let mut names: Vec<&str> = all.keys().map(String::as_str).collect();
            names.sort_unstable();
            Err(format!(
                "{}.{SUFFIX}: {address} is for {hca}, which the pod is not given (it gets {})",
                Key::Address.word(),
                names.join(", ")
            ))
        }
    }
}

/// Which address the sub-interface of an adapter is to have, of so many that its container gets.
fn of(request: &Request, wanted: &Child, count: usize) -> Result<Wanted, String> {
    let fixed = match &request.address {
        AddressRequest::Auto => return Ok(Wanted::Pool),
        AddressRequest::None => return Ok(Wanted::None),
        AddressRequest::Fixed(fixed) => fixed,
    };
    let its = |one: &&FixedAddress| match &one.hca {
        Some(hca) => *hca == wanted.hca,
        None => count == 1,
    };
    let its: Vec<Prefix> = fixed.iter().filter(its).map(|one| one.address).collect();
    if its.is_empty() {
        return Err(format!(
            "{}.{SUFFIX}: there is no address for {} (write {}=ADDRESS)",
            Key::Address.word(),
            wanted.hca,
            wanted.hca
        ));
    }
    Ok(Wanted::Fixed(its))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Carrier, Container, NetnsRequest};

    fn request(address: &[(&str, &str)]) -> Request {
        let fixed = address.iter().map(|(hca, address)| FixedAddress {
            hca: (!hca.is_empty()).then(|| (*hca).to_owned()),
            address: address.parse().unwrap(),
        });
        Request {
            netns: NetnsRequest::Ipvlan,
            address: AddressRequest::Fixed(fixed.collect()),
            ..Request::nothing(Container::default(), Carrier::default())
        }
    }

    fn children(names: &[&str]) -> Vec<Child> {
        let child = |name: &&str| Child {
            hca: (*name).to_owned(),
            parent: "eth0".into(),
            parent_index: 3,
            kind: NetnsRequest::Ipvlan,
        };
        names.iter().map(child).collect()
    }

    #[test]
    fn an_address_for_an_adapter_that_nobody_gets_is_refused() {
        let both = request(&[("mlx5_0", "10.1.0.7/24"), ("mlx5_1", "10.1.1.7/24")]);
        let (zero, one) = (children(&["mlx5_0"]), children(&["mlx5_1"]));
        let refused = wanted(&[(&both, zero.clone())]).unwrap_err();
        assert_eq!(
            refused,
            "address.rdma-ctk.io: 10.1.1.7/24 is for mlx5_1, which the pod is not given (it gets \
             mlx5_0)"
        );
        // Another container of the pod gets it.
        let all = wanted(&[(&both, zero.clone()), (&both, one)]).unwrap();
        assert_eq!(all["mlx5_1"], Wanted::Fixed(vec!["10.1.1.7/24".parse().unwrap()]));
        let bare = request(&[("", "10.1.0.7/24")]);
        assert!(wanted(&[(&bare, zero.clone())]).is_ok());
        let several = wanted(&[(&bare, children(&["mlx5_0", "mlx5_1"]))]).unwrap_err();
        assert!(several.contains("there is no address for mlx5_0"), "{several}");
        let other = request(&[("mlx5_0", "10.1.0.8/24")]);
        let differ = wanted(&[(&bare, zero.clone()), (&other, zero)]).unwrap_err();
        assert!(differ.ends_with("its containers ask for different addresses"), "{differ}");
    }
}
