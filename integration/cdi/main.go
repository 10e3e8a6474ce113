// Reads CDI files as engines do, with the library that they use, and says what it makes of them:
// the devices of each, one a line. Usage: cdi-read FOLDER...
package main

import (
	"fmt"
	"os"
	"sort"

	"tags.cncf.io/container-device-interface/pkg/cdi"
)

func main() {
	failed := false
	for _, folder := range os.Args[1:] {
		cache, err := cdi.NewCache(cdi.WithSpecDirs(folder), cdi.WithAutoRefresh(false))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		for path, problems := range cache.GetErrors() {
			fmt.Fprintln(os.Stderr, path, problems)
			failed = true
		}
		devices := cache.ListDevices()
		sort.Strings(devices)
		for _, name := range devices {
			device := cache.GetDevice(name)
			nodes := ""
			for _, node := range device.ContainerEdits.DeviceNodes {
				nodes += " " + node.Path + ":" + node.Permissions
			}
			fmt.Println(name + nodes)
		}
		for _, vendor := range cache.ListVendors() {
			for _, spec := range cache.GetVendorSpecs(vendor) {
				least, err := cdi.MinimumRequiredVersion(spec.Spec)
				if err != nil || least != spec.Version {
					fmt.Fprintf(os.Stderr, "%s: version %s, least %s %v\n", spec.GetPath(), spec.Version, least, err)
					failed = true
				}
			}
		}
	}
	if failed {
		os.Exit(1)
	}
}
