package registrar

import (
	"testing"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/access"
	"github.com/aether-federation/aether/registry"
)

// TestDecisionOnEachCall: what the guard makes of a request, and the policy of that.
func TestDecisionOnEachCall(t *testing.T) {
	policy, err := access.NewPolicy([]access.Rule{
		{Role: access.Reader, Identities: []string{"cn:reader"}},
		{Role: access.Writer, Identities: []string{"cn:writer"}},
		{Role: access.Node, Identities: []string{"cn:node-{node}"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	of := func(nodes ...string) (out []*registryv1.Endpoint) {
		for _, n := range nodes {
			out = append(out, &registryv1.Endpoint{Node: n})
		}
		return out
	}
	report := func(node string, endpoints ...string) any {
		return &registryv1.ReportRequest{Node: node, Endpoints: of(endpoints...)}
	}
	health := func(nodes ...string) any { return &registryv1.SetHealthRequest{Endpoints: of(nodes...)} }
	const node, reader, writer = "cn:node-n1", "cn:reader", "cn:writer"
	tests := map[string]struct {
		who, method string
		req         any
		denied      bool
	}{
		"node reports":                         {node, registryv1.RegistryService_Report_FullMethodName, report("n1", "n1", ""), false},
		"node reports nothing":                 {node, registryv1.RegistryService_Report_FullMethodName, report("n1"), false},
		"node reports another":                 {node, registryv1.RegistryService_Report_FullMethodName, report("n2"), true},
		"node reports another's":               {node, registryv1.RegistryService_Report_FullMethodName, report("n1", "n1", "n2"), true},
		"node reports its own as another":      {node, registryv1.RegistryService_Report_FullMethodName, report("n2", "n1"), true},
		"node reports nobody":                  {node, registryv1.RegistryService_Report_FullMethodName, report(""), true},
		"writer reports any":                   {writer, registryv1.RegistryService_Report_FullMethodName, report("n2", "n2"), false},
		"reader reports":                       {reader, registryv1.RegistryService_Report_FullMethodName, report("n1"), true},
		"node drains its own":                  {node, registryv1.RegistryService_SetHealth_FullMethodName, health("n1", "n1"), false},
		"node drains another's":                {node, registryv1.RegistryService_SetHealth_FullMethodName, health("n1", "n2"), true},
		"node drains whoever holds it":         {node, registryv1.RegistryService_SetHealth_FullMethodName, health(""), true},
		"writer drains whoever holds it":       {writer, registryv1.RegistryService_SetHealth_FullMethodName, health("", "n2"), false},
		"reader drains":                        {reader, registryv1.RegistryService_SetHealth_FullMethodName, health("n1"), true},
		"node asks for the sweep":              {node, registryv1.RegistryService_Sweep_FullMethodName, &registryv1.SweepRequest{}, false},
		"reader asks for the sweep":            {reader, registryv1.RegistryService_Sweep_FullMethodName, &registryv1.SweepRequest{}, false},
		"stranger asks for the sweep":          {"cn:stranger", registryv1.RegistryService_Sweep_FullMethodName, &registryv1.SweepRequest{}, true},
		"writer calls what is not thought of":  {writer, "/aether.registry.v1.RegistryService/Unheard", nil, true},
		"writer calls the like of another API": {writer, "/aether.other.v1.Service/Report", report("n1"), true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := policy.Decide(access.Identity{Names: []string{tt.who}}, access.Action{Need: needOf(tt.method), Nodes: nodesOf(tt.req)})
			if (err != nil) != tt.denied || err != nil && registry.KindOf(err) != registry.Denied {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestEachMethodIsThoughtOf: one that is not is an admin's alone.
func TestEachMethodIsThoughtOf(t *testing.T) {
	service := registryv1.RegistryService_ServiceDesc
	for _, m := range service.Methods {
		if _, known := needs[m.MethodName]; !known {
			t.Errorf("%s: no need", m.MethodName)
		}
	}
	for _, s := range service.Streams {
		if _, known := needs[s.StreamName]; !known {
			t.Errorf("%s: no need", s.StreamName)
		}
	}
	if len(needs) != len(service.Methods)+len(service.Streams) {
		t.Error("there are needs of methods that do not exist")
	}
}

func TestOperationAndCost(t *testing.T) {
	if got := operationOf(registryv1.RegistryService_SetHealth_FullMethodName); got != "set_health" {
		t.Errorf("operation %q", got)
	}
	req := &registryv1.ReportRequest{Node: "n1", Endpoints: make([]*registryv1.Endpoint, 10*registry.MaxBatch)}
	if got := costOf(req); got != 11 {
		t.Errorf("a report of ten batches costs %d", got)
	}
	if got := costOf(&registryv1.ListRequest{}); got != 1 {
		t.Errorf("a list costs %d", got)
	}
}

func TestPatienceGrowsWithTheCall(t *testing.T) {
	s := &service{writeTimeout: 3 * time.Second}
	for endpoints, want := range map[int]time.Duration{0: 3 * time.Second, 128: 3 * time.Second, 10_000: 9 * time.Second} {
		if got := s.patience(endpoints); got != want {
			t.Errorf("%d endpoints have %v, want %v", endpoints, got, want)
		}
	}
}
