// Package access decides who may do what at a registrar. A client is whom its
// certificate names; a [Policy] gives names roles; [Policy.Decide] answers, from
// these alone, and is all that the listeners ask.
package access

import (
	"crypto/x509"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/aether-federation/aether/registry"
)

// Role is what a client may do.
type Role string

// The roles. Each may read.
const (
	// Reader reads.
	Reader Role = "reader"
	// Node reads, and writes endpoints that name it as their node.
	Node Role = "node"
	// Writer reads, and writes any endpoint of the registrar's cluster.
	Writer Role = "writer"
	// Admin does everything.
	Admin Role = "admin"
)

// Roles lists every role.
func Roles() []Role { return []Role{Reader, Node, Writer, Admin} }

// Need is what an action takes.
type Need uint8

// The needs, from the least.
const (
	// Probe asks whether the registrar lives.
	Probe Need = iota
	// Read endpoints, regions, metrics.
	Read
	// Write endpoints.
	Write
	// Administer: what is none of the others.
	Administer
)

// Action is something that a client asks for.
type Action struct {
	Need Need
	// Nodes that own what is written; empty among them: nobody does. None: it is
	// not known yet, and whoever may write anything may go on.
	Nodes []string
}

// Identity is whom a client has proven to be: its names, each with its kind, as
// in cn:web, dns:web.example.org, spiffe://example.org/web. None: it has not.
type Identity struct {
	Names []string
}

// String returns the most telling name.
func (id Identity) String() string {
	if len(id.Names) == 0 {
		return "anonymous"
	}
	return id.Names[0]
}

// Of returns the identity of a certificate that was verified: URIs first, then
// DNS names, then the common name.
func Of(cert *x509.Certificate) Identity {
	var id Identity
	for _, u := range cert.URIs {
		id.Names = append(id.Names, u.String())
	}
	for _, name := range cert.DNSNames {
		id.Names = append(id.Names, "dns:"+name)
	}
	if cn := cert.Subject.CommonName; cn != "" {
		id.Names = append(id.Names, "cn:"+cn)
	}
	return id
}

// Rule gives a role to the identities that one of its patterns matches.
type Rule struct {
	Role Role `yaml:"role"`
	// Identities are patterns of names. * stands for any characters, /*/ for any
	// number of path segments, and {node}, which patterns of the role node must
	// have and no others may, for the node's name.
	Identities []string `yaml:"identities"`
}

// Policy says which identities have which roles. The zero Policy gives none. It is
// safe for concurrent use.
type Policy struct {
	grants atomic.Pointer[[]grant]
}

// Become has p say what other says, from the next decision on.
func (p *Policy) Become(other *Policy) { p.grants.Store(other.grants.Load()) }

type grant struct {
	role    Role
	pattern *regexp.Regexp
}

// NewPolicy reads rules. The error names each that is wrong.
func NewPolicy(rules []Rule) (*Policy, error) {
	var grants []grant
	for i, r := range rules {
		if !slices.Contains(Roles(), r.Role) {
			return nil, fmt.Errorf("rules[%d]: role %q: want reader, node, writer or admin", i, r.Role)
		}
		for _, text := range r.Identities {
			pattern, err := compile(r.Role, text)
			if err != nil {
				return nil, fmt.Errorf("rules[%d]: identity %q: %w", i, text, err)
			}
			grants = append(grants, grant{role: r.Role, pattern: pattern})
		}
	}
	p := &Policy{}
	p.grants.Store(&grants)
	return p, nil
}

const nodeMark = "{node}"

func compile(role Role, text string) (*regexp.Regexp, error) {
	kind, rest, found := strings.Cut(text, ":")
	if !found || rest == "" || strings.Contains(kind, "*") {
		return nil, fmt.Errorf("want cn:…, dns:… or a URI such as spiffe://…")
	}
	switch n := strings.Count(text, nodeMark); {
	case role == Node && n != 1:
		return nil, fmt.Errorf("a node's identity has %s once, where the node's name is", nodeMark)
	case role != Node && n > 0:
		return nil, fmt.Errorf("%s is for the role node", nodeMark)
	}
	expr := regexp.QuoteMeta(text)
	expr = strings.ReplaceAll(expr, `/\*/`, `/(?:.*/)?`)
	expr = strings.ReplaceAll(expr, `\*`, `.*`)
	expr = strings.ReplaceAll(expr, regexp.QuoteMeta(nodeMark), `([^/]+)`)
	return regexp.Compile(`^` + expr + `$`)
}

// Decide returns nil if id may do a, and otherwise a Denied error that says what
// it lacks.
func (p *Policy) Decide(id Identity, a Action) error {
	if a.Need == Probe {
		return nil
	}
	roles, nodes := p.roles(id)
	switch {
	case len(id.Names) == 0:
		return registry.Errorf(registry.Denied, "who you are is not known: connect with a client certificate")
	case len(roles) == 0:
		return registry.Errorf(registry.Denied, "%s has no role here: an operator gives it one in the file of --auth", id)
	case slices.Contains(roles, Admin), a.Need == Read:
		return nil
	case a.Need == Administer:
		return registry.Errorf(registry.Denied, "%s is not an admin", id)
	case slices.Contains(roles, Writer):
		return nil
	case len(nodes) == 0:
		return registry.Errorf(registry.Denied, "%s may read, not write", id)
	default:
		return ownOnly(id, nodes, a.Nodes)
	}
}

// ownOnly lets a node write what names it.
func ownOnly(id Identity, own, written []string) error {
	for _, node := range written {
		if node == "" {
			return registry.Errorf(registry.Denied, "%s is a node: name it (%s) as the node of each endpoint", id, strings.Join(own, ", "))
		}
		if !slices.Contains(own, node) {
			return registry.Errorf(registry.Denied, "%s is node %s: it may not write endpoints of node %s", id, strings.Join(own, ", "), node)
		}
	}
	return nil
}

// roles returns what id was given, and which nodes it is.
func (p *Policy) roles(id Identity) (roles []Role, nodes []string) {
	grants := p.grants.Load()
	if grants == nil {
		return nil, nil
	}
	for _, g := range *grants {
		for _, name := range id.Names {
			m := g.pattern.FindStringSubmatch(name)
			if m == nil {
				continue
			}
			roles = append(roles, g.role)
			if g.role == Node {
				nodes = append(nodes, m[1])
			}
		}
	}
	return roles, nodes
}
