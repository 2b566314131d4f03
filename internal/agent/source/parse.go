package source

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/aether-federation/aether/internal/agent/probe"
	"github.com/aether-federation/aether/registry"
)

// document is a file of services.
type document struct {
	Services []service `yaml:"services"`
}

// service is one endpoint in a file.
type service struct {
	Name     string            `yaml:"name"`
	Protocol string            `yaml:"protocol"`
	IP       string            `yaml:"ip"`
	Instance string            `yaml:"instance"`
	Ports    map[string]uint16 `yaml:"ports"`
	Weight   uint32            `yaml:"weight"`
	Health   string            `yaml:"health"`
	Zone     string            `yaml:"zone"`
	Network  string            `yaml:"network"`
	Gateways map[string]string `yaml:"gateways"`
	Metadata map[string]string `yaml:"metadata"`
	Check    *check            `yaml:"check"`
}

type check struct {
	Type       string        `yaml:"type"`
	Port       string        `yaml:"port"`
	IP         string        `yaml:"ip"`
	Path       string        `yaml:"path"`
	Host       string        `yaml:"host"`
	Status     string        `yaml:"status"`
	TLS        bool          `yaml:"tls"`
	SkipVerify bool          `yaml:"tls-skip-verify"`
	Service    string        `yaml:"service"`
	Interval   time.Duration `yaml:"interval"`
	Timeout    time.Duration `yaml:"timeout"`
	Rise       int           `yaml:"rise"`
	Fall       int           `yaml:"fall"`
}

// Parse reads a YAML document of services. All that is wrong is told, each with
// its line; then nothing is returned. A document that is empty, or has no list of
// services, is wrong: nothing on purpose is `services: []`.
func Parse(name string, text []byte, d Defaults) ([]Declared, []Problem) {
	doc, root, problems := decode(name, text)
	if len(problems) > 0 {
		return nil, problems
	}
	items := child(root, "services")
	if items == nil || items.Kind != yaml.SequenceNode {
		return nil, []Problem{{Where: name, Text: "there is no list of services: the last valid state stays; if there are none, say so with `services: []`"}}
	}
	p := parser{name: name, defaults: d, lines: map[registry.Key]int{}}
	for i, s := range doc.Services {
		p.service(items.Content[i], s)
	}
	if len(p.problems) > 0 {
		return nil, p.problems
	}
	return p.declared, nil
}

func decode(name string, text []byte) (document, *yaml.Node, []Problem) {
	var doc document
	var root yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&doc); err != nil {
		return doc, nil, yamlProblems(name, err)
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return doc, nil, []Problem{{Where: name, Text: "there is more than one YAML document: write one"}}
	}
	if err := yaml.Unmarshal(text, &root); err != nil {
		return doc, nil, yamlProblems(name, err)
	}
	return doc, root.Content[0], nil
}

var (
	yamlLine  = regexp.MustCompile(`^(?:yaml: )?line (\d+): (.*)$`)
	yamlType  = regexp.MustCompile(` in type source\.\w+$`)
	yamlValue = regexp.MustCompile("^cannot unmarshal !!\\w+ (`.*`|\\S+) into (\\S+)$")
	yamlField = regexp.MustCompile(`^field (\S+) not found$`)
)

// yamlProblems says in the words of whoever writes the file what YAML's package
// says in Go's.
func yamlProblems(name string, err error) []Problem {
	if errors.Is(err, io.EOF) {
		return []Problem{{Where: name, Text: "the file is empty: the last valid state stays; if there are no services, say so with `services: []`"}}
	}
	texts := []string{err.Error()}
	if mistakes, ok := errors.AsType[*yaml.TypeError](err); ok {
		texts = mistakes.Errors
	}
	out := make([]Problem, 0, len(texts))
	for _, t := range texts {
		where := name
		if m := yamlLine.FindStringSubmatch(t); m != nil {
			where, t = name+":"+m[1], m[2]
		}
		out = append(out, Problem{Where: where, Text: plainly(t)})
	}
	return out
}

// wanted are Go's types in the words of whoever writes the file.
var wanted = map[string]string{
	"time.Duration": "a duration such as 5s",
	"uint16":        "a number from 0 to 65535",
	"uint32":        "a number",
	"int":           "a number",
	"bool":          "true or false",
	"string":        "a text",
}

func plainly(t string) string {
	t = yamlField.ReplaceAllString(yamlType.ReplaceAllString(t, ""), "field $1 is unknown")
	m := yamlValue.FindStringSubmatch(t)
	if m == nil {
		return t
	}
	want, ok := wanted[m[2]]
	if !ok {
		want = "a list or fields, as in the sample"
	}
	return m[1] + ": want " + want
}

// child is the value of a key in a mapping, nil if there is none.
func child(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// parser gathers what a file declares and what is wrong with it.
type parser struct {
	name     string
	defaults Defaults
	declared []Declared
	problems []Problem
	lines    map[registry.Key]int
}

func (p *parser) service(n *yaml.Node, s service) {
	e, err := s.endpoint(p.defaults)
	var c *probe.Check
	if err == nil && s.Check != nil {
		c, err = s.Check.of(e)
		err = registry.Within("check", err)
	}
	if err != nil {
		p.problem(n, err)
		return
	}
	if first, twice := p.lines[e.Key]; twice {
		p.problem(n, registry.Invalidf("name", "%s", takenBy(e.Key, fmt.Sprintf("line %d", first))))
		return
	}
	p.lines[e.Key] = n.Line
	p.declared = append(p.declared, Declared{Endpoint: e, Check: c, From: p.at(n)})
}

func (p *parser) at(n *yaml.Node) string { return fmt.Sprintf("%s:%d", p.name, n.Line) }

// fieldPart is the first part of a field's path: a name or an index.
var fieldPart = regexp.MustCompile(`^\.?([\w-]+)|^\["?([^"\]]*)"?\]`)

// inFile are fields whose names in a file are others.
var inFile = map[string]string{"service": "name"}

// problem notes err at the line of its field, or of the nearest thing around it.
func (p *parser) problem(n *yaml.Node, err error) {
	text, at := err.Error(), n
	if e, ok := errors.AsType[*registry.Error](err); ok {
		field := e.Field
		if other, ok := inFile[field]; ok {
			field = other
		}
		text = strings.TrimPrefix(field+": "+e.Err.Error(), ": ")
		at = locate(n, field)
	}
	p.problems = append(p.problems, Problem{Where: p.at(at), Text: text})
}

// locate follows a field's path as far as it leads.
func locate(n *yaml.Node, field string) *yaml.Node {
	for {
		m := fieldPart.FindStringSubmatch(field)
		if m == nil {
			return n
		}
		next := child(n, m[1]+m[2])
		if next == nil {
			return n
		}
		n, field = next, field[len(m[0]):]
	}
}

func (s service) endpoint(d Defaults) (registry.Endpoint, error) {
	e := registry.Endpoint{
		Key:    registry.Key{Service: s.Name, Protocol: registry.Protocol(s.Protocol), IP: d.IP, Instance: s.Instance},
		Weight: s.Weight, Zone: cmp.Or(s.Zone, d.Zone), Network: cmp.Or(s.Network, d.Network), Metadata: s.Metadata,
	}
	for _, name := range slices.Sorted(maps.Keys(s.Ports)) {
		e.Ports = append(e.Ports, registry.Port{Name: name, Number: s.Ports[name]})
	}
	var err error
	if e.IP, err = addressOr(s.IP, d.IP); err != nil {
		return e, err
	}
	if e.Health, err = healthOf(s.Health); err != nil {
		return e, err
	}
	if e.Gateways, err = gatewaysOf(s.Gateways); err != nil {
		return e, err
	}
	return Check(e)
}

// addressOr reads an address or, where none is given, takes the default.
func addressOr(s string, d netip.Addr) (netip.Addr, error) {
	if s == "" && d.IsValid() {
		return d, nil
	}
	if s == "" {
		return d, registry.Invalidf("ip", "is empty, and the agent was told no --ip: give one of both")
	}
	return registry.ParseIP(s)
}

func healthOf(s string) (registry.Health, error) {
	if s == "" {
		return registry.Healthy, nil
	}
	for _, h := range []registry.Health{registry.Healthy, registry.Unhealthy, registry.Draining} {
		if h.String() == s {
			return h, nil
		}
	}
	return 0, registry.Invalidf("health", "%q is unknown: use healthy, unhealthy or draining", s)
}

func gatewaysOf(in map[string]string) (map[string]netip.AddrPort, error) {
	if len(in) == 0 {
		return nil, nil
	}
	out := make(map[string]netip.AddrPort, len(in))
	for name, text := range in {
		a, err := netip.ParseAddrPort(text)
		if err != nil {
			return nil, registry.Invalidf("gateways."+name, "%q is no address: use for example 203.0.113.7:8080", text)
		}
		out[name] = a
	}
	return out, nil
}

// of returns the check of an endpoint.
func (c check) of(e registry.Endpoint) (*probe.Check, error) {
	out := probe.Check{
		Kind: probe.Kind(c.Type), Path: c.Path, Host: c.Host, TLS: c.TLS, SkipVerify: c.SkipVerify, Service: c.Service,
		Interval: c.Interval, Timeout: c.Timeout, Rise: c.Rise, Fall: c.Fall,
	}
	ip, err := addressOr(c.IP, e.IP)
	if err != nil {
		return nil, err
	}
	port, err := portOf(c.Port, e.Ports)
	if err != nil {
		return nil, err
	}
	out.Target = netip.AddrPortFrom(ip, port)
	if out.StatusFrom, out.StatusTo, err = statusOf(c.Status); err != nil {
		return nil, err
	}
	out = out.WithDefaults()
	return &out, out.Validate()
}

// portOf finds the port that is asked: by name, by number, or the only one.
func portOf(s string, ports []registry.Port) (uint16, error) {
	if s == "" && len(ports) == 1 {
		return ports[0].Number, nil
	}
	for _, p := range ports {
		if p.Name == s {
			return p.Number, nil
		}
	}
	if n, err := strconv.ParseUint(s, 10, 16); err == nil && n > 0 {
		return uint16(n), nil
	}
	return 0, registry.Invalidf("port", "%q is none of the endpoint's ports: name one of them, or give a number", s)
}

// statusOf reads a status or a range of them.
func statusOf(s string) (from, to int, err error) {
	if s == "" {
		return 0, 0, nil
	}
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	from, errFrom := strconv.Atoi(first)
	to, errTo := strconv.Atoi(last)
	if errFrom != nil || errTo != nil {
		return 0, 0, registry.Invalidf("status", "%q is no status: use for example 200 or 200-299", s)
	}
	return from, to, nil
}
