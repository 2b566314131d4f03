package agent

import (
	"time"

	"github.com/aether-federation/aether/internal/agent/probe"
	"github.com/aether-federation/aether/internal/agent/report"
	"github.com/aether-federation/aether/internal/agent/source"
)

// Status is how a node is: what it has, how that is, and who knows of it. As JSON it
// is the answer of GET /v1/agent.
type Status struct {
	Node string `json:"node"`
	// Phase is running, draining or gone.
	Phase string `json:"phase"`
	// Announcing tells whether the node announces what it has, or its presence
	// alone; Why says why not, or why probes decide nothing.
	Announcing bool   `json:"announcing"`
	Why        string `json:"why,omitempty"`
	// Suspect is since when all probes have failed at once.
	Suspect   *time.Time       `json:"suspect,omitempty"`
	Reports   ReportStatus     `json:"reports"`
	View      ViewStatus       `json:"view"`
	Endpoints []EndpointStatus `json:"endpoints"`
	Problems  []ProblemStatus  `json:"problems"`
}

// ReportStatus is how reporting to registrars goes.
type ReportStatus struct {
	// Connected: the latest report came through, and has since Since; otherwise none
	// has since then.
	Connected bool `json:"connected"`
	// Registrar is who took the latest report.
	Registrar string    `json:"registrar,omitempty"`
	Since     time.Time `json:"since"`
	// Last is when a report came through.
	Last  *time.Time `json:"last,omitempty"`
	Error string     `json:"error,omitempty"`
	// Rival is since when another machine seems to report under this node's name.
	Rival *time.Time `json:"rival,omitempty"`
	// PresenceTTL is how long the node counts as present after a report.
	PresenceTTL string `json:"presence_ttl"`
}

// ViewStatus is how well the agent knows the registry.
type ViewStatus struct {
	// Known: there is something to serve to programs.
	Known bool `json:"known"`
	// Age is how long ago it was all that a registrar had.
	Age string `json:"age,omitempty"`
	// Region is the registrars' own.
	Region string `json:"region,omitempty"`
}

// EndpointStatus is one endpoint that a source declares.
type EndpointStatus struct {
	Service  string `json:"service"`
	Protocol string `json:"protocol"`
	IP       string `json:"ip"`
	Instance string `json:"instance,omitempty"`
	From     string `json:"from"`
	// Health is what was announced last; empty: nothing was, yet.
	Health string       `json:"health,omitempty"`
	Probe  *ProbeStatus `json:"probe,omitempty"`
	// Conflict says which other node holds it.
	Conflict string `json:"conflict,omitempty"`
}

// ProbeStatus is what asking an endpoint brought.
type ProbeStatus struct {
	Type   string `json:"type"`
	Target string `json:"target"`
	// At is when it was asked last.
	At *time.Time `json:"at,omitempty"`
	OK bool       `json:"ok"`
	// Error is why it was not well.
	Error string `json:"error,omitempty"`
	// Streak is how many results in a row speak against the health that stands.
	Streak int `json:"streak,omitempty"`
}

// ProblemStatus is something that is wrong in a source.
type ProblemStatus struct {
	Where string `json:"where"`
	Text  string `json:"text"`
}

// Status tells how the node is.
func (n *Node) Status() Status {
	verdicts, suspect := n.prober.Verdicts()
	reports := n.reporter.Status()
	n.mu.Lock()
	defer n.mu.Unlock()
	s := Status{
		Node: n.cfg.Name, Phase: n.phase.String(), Announcing: n.announced.Known, Suspect: timeOf(suspect),
		Reports: reportStatus(reports), Endpoints: []EndpointStatus{}, Problems: []ProblemStatus{},
	}
	if !s.Announcing || s.Suspect != nil {
		s.Why = why(n.sources, suspect)
	}
	for _, d := range n.sources.Declared {
		key := d.Endpoint.Key
		e := endpointStatus(d, verdicts[key])
		if h, announced := n.standing[key]; announced {
			e.Health = h.String()
		}
		if err := reports.Conflicts[key]; err != nil {
			e.Conflict = err.Error()
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	for _, p := range n.sources.Problems {
		s.Problems = append(s.Problems, ProblemStatus(p))
	}
	return s
}

func reportStatus(r report.Status) ReportStatus {
	s := ReportStatus{
		Connected: r.Err == nil && !r.Last.IsZero(), Registrar: r.Registrar, Since: r.Since, Last: timeOf(r.Last), PresenceTTL: r.PresenceTTL.String(), Rival: timeOf(r.Rival),
	}
	if r.Err != nil {
		s.Error = r.Err.Error()
	}
	return s
}

// why says what keeps a node from announcing what it has.
func why(s source.State, suspect time.Time) string {
	switch {
	case !s.Known:
		return "not every source has been read: see its problems"
	case !suspect.IsZero():
		return "all probes fail at once: the machine suspects itself, and the health that it announced last stands"
	default:
		return "not every endpoint has been probed yet"
	}
}

func endpointStatus(d source.Declared, v probe.Verdict) EndpointStatus {
	k := d.Endpoint.Key
	e := EndpointStatus{Service: k.Service, Protocol: string(k.Protocol), IP: k.IP.String(), Instance: k.Instance, From: d.From}
	if d.Check == nil {
		return e
	}
	e.Probe = &ProbeStatus{Type: string(d.Check.Kind), Target: d.Check.Target.String(), At: timeOf(v.Last.At), Streak: v.Streak}
	if v.Last.Err != nil {
		e.Probe.Error = v.Last.Err.Error()
	}
	e.Probe.OK = e.Probe.At != nil && v.Last.Err == nil
	return e
}

// timeOf is nil for the zero time.
func timeOf(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
