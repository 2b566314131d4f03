package agent

import (
	"log/slog"
	"time"

	"github.com/aether-federation/aether/internal/agent/state"
	"github.com/aether-federation/aether/registry"
)

const (
	announcedState = "announced"
	// rememberFor is for how long what was announced says how endpoints are. After
	// that they are asked as if they were new.
	rememberFor = 5 * time.Minute
)

// memory keeps what was announced, in a state directory.
type memory struct{ dir state.Dir }

// announcedEndpoint is the form on disk.
type announcedEndpoint struct {
	Service, Protocol, IP, Instance string
	Health                          registry.Health
}

// Save implements [report.Memory], as does Touch.
func (m memory) Save(announced map[registry.Key]registry.Health) error {
	out := make([]announcedEndpoint, 0, len(announced))
	for k, h := range announced {
		out = append(out, announcedEndpoint{k.Service, string(k.Protocol), k.IP.String(), k.Instance, h})
	}
	return m.dir.Save(announcedState, out)
}

func (m memory) Touch() error { return m.dir.Touch(announcedState) }

// load returns what was announced last, and whether that was lately.
func (m memory) load(log *slog.Logger) (announced map[registry.Key]registry.Health, lately bool) {
	var saved []announcedEndpoint
	age, err := m.dir.Load(announcedState, &saved)
	if err != nil {
		log.Warn("what was announced before is not known", "error", err)
	}
	announced = make(map[registry.Key]registry.Health, len(saved))
	for _, s := range saved {
		ip, err := registry.ParseIP(s.IP)
		if err != nil {
			continue
		}
		announced[registry.Key{Service: s.Service, Protocol: registry.Protocol(s.Protocol), IP: ip, Instance: s.Instance}] = s.Health
	}
	return announced, age >= 0 && age < rememberFor
}

// healthOf is what announced health says of probes: a drain says nothing.
func healthOf(announced map[registry.Key]registry.Health) map[registry.Key]bool {
	known := map[registry.Key]bool{}
	for k, h := range announced {
		if h != registry.Draining {
			known[k] = h.Serving()
		}
	}
	return known
}
