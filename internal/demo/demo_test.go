package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/aether-federation/aether/registry"
)

func at(region string, port uint16, health registry.Health) registry.Endpoint {
	e := registry.Endpoint{
		Key:    registry.Key{Origin: registry.Origin{Region: region, Cluster: "c"}, Service: service, IP: netip.MustParseAddr("127.0.0.1")},
		Health: health,
	}
	if port != 0 {
		e.Ports = []registry.Port{{Name: "http", Number: port}}
	}
	return e
}

func TestPreferredIsTheOwnRegionFirst(t *testing.T) {
	all := map[registry.Key]registry.Endpoint{}
	for _, e := range []registry.Endpoint{
		at("a", 1, registry.Healthy), at("b", 2, registry.HealthUnspecified), at("c", 3, registry.Healthy),
		at("d", 4, registry.Draining), at("e", 0, registry.Healthy),
	} {
		all[e.Key] = e
	}
	var got []string
	for _, e := range preferred(all, "b") {
		got = append(got, e.Region)
	}
	if s := strings.Join(got, " "); s != "b a c" {
		t.Errorf("order %s, want b a c: the own region, then the others, only what can be called", s)
	}
}

func TestPlanTellsPeersOfEachOther(t *testing.T) {
	regions, err := plan(Config{Regions: 3, LeaseTTL: 5 * time.Second}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	addresses := map[string]bool{}
	for _, r := range regions {
		args := strings.Join(r.args(), " ")
		for _, o := range regions {
			if peer := "--peer-etcd " + o.name + "=" + o.etcd; strings.Contains(args, peer) != (o != r) {
				t.Errorf("region %s is started with %s", r.name, args)
			}
		}
		for _, a := range []string{r.etcd, r.grpc, r.http, loopback(r.backendPort)} {
			if addresses[a] {
				t.Errorf("address %s is given twice", a)
			}
			addresses[a] = true
		}
	}
}

func TestReportIsOneDocument(t *testing.T) {
	var out, tell bytes.Buffer
	r := newReport(Config{JSON: true, Out: &out, Tell: &tell})
	r.add("first", 1500*time.Millisecond, true, "fine")
	r.add("second", time.Second, false, "not so")
	if err := r.finish(); err != nil {
		t.Fatal(err)
	}
	if err := r.finish(); err != nil { // a second time says nothing
		t.Fatal(err)
	}
	var got document
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	if got.Held || len(got.Steps) != 2 || got.Steps[0].Seconds != 1.5 || !got.Steps[0].Held {
		t.Errorf("got %+v", got)
	}
	if !strings.Contains(tell.String(), "NOT HELD") {
		t.Errorf("the story says %q, want that a step did not hold", tell.String())
	}
}

// Whoever interrupts a demo is not told that a promise was broken.
func TestInterruptedStepIsNotOneThatFailed(t *testing.T) {
	var out, tell bytes.Buffer
	s := &story{report: newReport(Config{JSON: true, Out: &out, Tell: &tell})}
	broken := fmt.Errorf("watch hello in region a: %w", context.Canceled)
	if err := s.done("region killed", time.Now(), true, broken, "gone"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want what interrupted it", err)
	}
	if said := tell.String(); !strings.Contains(said, "interrupted") || strings.Contains(said, "NOT HELD") {
		t.Errorf("the story says %q, want that it was interrupted", said)
	}
	if err := s.report.finish(); err != nil {
		t.Fatal(err)
	}
	var got document
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Held || len(got.Steps) != 1 || !got.Steps[0].Interrupted {
		t.Errorf("got %+v, want a step that was interrupted and a story that is not held", got)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []Config{
		{Regions: 1, LeaseTTL: DefaultLeaseTTL},
		{Regions: MaxRegions + 1, LeaseTTL: DefaultLeaseTTL},
		{Regions: 2, LeaseTTL: time.Second},
		{Regions: 2, LeaseTTL: 5500 * time.Millisecond},
	} {
		if c.Validate() == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
	if err := (Config{Regions: DefaultRegions, LeaseTTL: DefaultLeaseTTL}).Validate(); err != nil {
		t.Errorf("the defaults were refused: %v", err)
	}
}
