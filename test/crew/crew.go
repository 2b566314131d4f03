// Package crew is a member of a test's fleet: a node that reports endpoints and
// changes them all the time, and that follows every service and remembers what it
// was told. It runs in a process of its own, which is asked over its standard
// input, one command a line, and answers each with a line of JSON.
package crew

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/aether-federation/aether/registry"
)

// Commands of a member.
const (
	// Tell asks for its State.
	Tell = "tell"
	// Freeze makes it stop changing what it has.
	Freeze = "freeze"
	// Thaw ends Freeze.
	Thaw = "thaw"
)

// A member holds the stable endpoints for as long as it lives. The others it
// replaces, one after the other.
const (
	stableServices = 4
	movingServices = 2
	stablePrefix   = "stable-"
	movingPrefix   = "moving-"
)

// generation is the key of the metadata that tells two versions of one endpoint
// apart.
const generation = "generation"

// State is what a member has and sees.
type State struct {
	// Own is what it has, View what it sees, both as Line has it and sorted.
	Own, View []string
	// Synced: View is or was complete.
	Synced bool
	// Losses since it was asked last.
	Losses []Loss
	// Errors that cannot come of a fault in the fleet.
	Errors []string
}

// Loss is a stable endpoint that left a view, or was in it and not fit to serve.
type Loss struct {
	At   time.Time
	Line string
	// Region and Node that have the endpoint.
	Region, Node string
	// What became of it.
	What string
}

// Line says in one line what e is.
func Line(e registry.Endpoint) string {
	return fmt.Sprintf("%s/%s %s %s node=%s generation=%s %v", e.Region, e.Cluster, e.Service, e.IP, e.Node, e.Metadata[generation], e.Health)
}

// Stable reports whether a line is of an endpoint that its node never changes.
func Stable(line string) bool { return strings.Contains(line, " "+stablePrefix) }

// Config says who a member is.
type Config struct {
	Origin registry.Origin
	// Number tells apart the members of a region.
	Number int
	// Incarnation tells apart the processes of one member: the endpoints that it
	// changes go on from there.
	Incarnation int
	// Registrars it may talk to, the one that it prefers first.
	Registrars []string
	// ReportEvery and ChangeEvery are how often it reports and changes.
	ReportEvery, ChangeEvery time.Duration
}

// Validate says what is wrong with c.
func (c Config) Validate() error {
	if len(c.Registrars) == 0 {
		return errors.New("a member needs a registrar")
	}
	if c.Number < 0 || c.Number > 255 {
		return errors.New("a member's number is from 0 to 255")
	}
	if c.ReportEvery <= 0 || c.ChangeEvery <= 0 {
		return errors.New("a member reports and changes every so often")
	}
	return c.Origin.Validate()
}

// Node is the member's name.
func (c Config) Node() string { return fmt.Sprintf("n%d", c.Number) }

// endpoints of the member after so many changes. Members of two regions have the
// same addresses.
func (c Config) endpoints(changes int) []registry.Endpoint {
	var all []registry.Endpoint
	add := func(service string, host int, version int) {
		all = append(all, registry.Endpoint{
			Key: registry.Key{
				Origin: c.Origin, Service: service, Protocol: registry.HTTP,
				IP: netip.AddrFrom4([4]byte{10, 0, byte(c.Number), byte(host)}),
			},
			Ports: []registry.Port{{Name: "http", Number: 8080}},
			Node:  c.Node(), Metadata: map[string]string{generation: strconv.Itoa(version)},
		})
	}
	for i := range stableServices {
		add(stablePrefix+strconv.Itoa(i), 1, 0)
	}
	// One in turn: it goes from address to address, and changes where it stays.
	for i := range movingServices {
		version := (changes + i) / movingServices
		add(movingPrefix+strconv.Itoa(i), 1+version/2%200, version)
	}
	return all
}
