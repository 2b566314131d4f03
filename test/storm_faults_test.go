package test

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// route is a mirror.
type route struct{ from, to string }

// blow is a fault that has been dealt.
type blow struct {
	// what it befell.
	what string
	// end heals it.
	end func()
	// away are the clients that no registrar hears. If it lasts, theirs is swept.
	away []*hand
	// cut are the mirrors that lapse if it lasts.
	cut []route
	// delays are the mirrors that go on later, by another replicator.
	delays []route
	// frozen are the mirrors whose leases may run out unseen if it lasts, so that
	// their regions lapse for a moment when it ends.
	frozen []route
}

// fault deals a blow to a part that it chooses.
type fault struct {
	name string
	deal func(f *stormFleet, r *rand.Rand) blow
}

// faults are all kinds of faults of all kinds of parts.
func faults() []fault {
	var all []fault
	add := func(name string, deal func(*stormFleet, *rand.Rand) blow) {
		all = append(all, fault{name: name, deal: deal})
	}
	for i, region := range []string{"a", "b"} {
		for _, how := range harms {
			add("etcd "+region+" "+how.name, func(f *stormFleet, _ *rand.Rand) blow { return f.etcdsDown(i, how) })
			add("registrar "+region+" "+how.name, func(f *stormFleet, r *rand.Rand) blow { return f.registrarDown(i, how, r) })
		}
		add("registrar "+region+" cut from etcd", func(f *stormFleet, r *rand.Rand) blow { return f.registrarCut(i, r) })
		add("registrar "+region+" cut from clients", func(f *stormFleet, r *rand.Rand) blow { return f.clientsOfCut(i, r) })
		add("region "+region+" cut from its peer", func(f *stormFleet, _ *rand.Rand) blow { return f.peerCut(i) })
	}
	for _, how := range harms {
		add("member of etcd a "+how.name, func(f *stormFleet, r *rand.Rand) blow { return f.memberDown(how, r) })
		add("clients "+how.name, func(f *stormFleet, r *rand.Rand) blow { return f.clientsDown(how, r) })
	}
	add("member of etcd a cut from registrars", func(f *stormFleet, r *rand.Rand) blow { return f.memberCut(r) })
	add("clients cut off", func(f *stormFleet, r *rand.Rand) blow { return f.clientsCut(r) })
	return all
}

// harm is what befalls a process.
type harm struct {
	name       string
	begin, end func(*part)
}

var harms = []harm{
	{name: "killed", begin: (*part).kill, end: (*part).revive},
	{name: "restarted", begin: (*part).end, end: (*part).revive},
	{name: "stopped", begin: (*part).freeze, end: (*part).thaw},
}

// to does h to parts and returns what ends it.
func (h harm) to(parts ...*part) (end func()) {
	for _, p := range parts {
		h.begin(p)
	}
	return func() {
		for _, p := range parts {
			h.end(p)
		}
	}
}

func cutAll(lines []*line) (heal func()) {
	for _, w := range lines {
		w.cut()
	}
	return func() {
		for _, w := range lines {
			w.heal()
		}
	}
}

// out and in are the mirrors of the region with index i, to its peer and from it.
func (f *stormFleet) out(i int) []route {
	return []route{{from: f.regions[i].name, to: f.regions[1-i].name}}
}

func (f *stormFleet) in(i int) []route { return f.out(1 - i) }

// etcdsDown befalls a whole etcd: its region's mirror ends, and its registrars
// see nothing.
func (f *stormFleet) etcdsDown(i int, how harm) blow {
	r := f.regions[i]
	return blow{what: "etcd " + r.name, end: how.to(r.etcds...), cut: f.out(i), frozen: f.in(i)}
}

// memberDown befalls one of three members.
func (f *stormFleet) memberDown(how harm, random *rand.Rand) blow {
	p := f.regions[0].etcds[random.IntN(len(f.regions[0].etcds))]
	return blow{what: p.name, end: how.to(p), delays: f.out(0)}
}

// memberCut leaves one of three members to its fellows alone.
func (f *stormFleet) memberCut(random *rand.Rand) blow {
	i := random.IntN(len(f.regions[0].etcds))
	lines := []*line{f.regions[1].toPeer[i]}
	for _, s := range f.regions[0].registrars {
		lines = append(lines, s.toEtcd[i])
	}
	return blow{what: f.regions[0].etcds[i].name, end: cutAll(lines), delays: slices.Concat(f.out(0), f.in(0))}
}

// alone says what becomes of the mirror of a region when one of its registrars is
// out of order.
func (f *stormFleet) alone(i int, b blow) blow {
	if len(f.regions[i].registrars) == 1 {
		b.cut = f.out(i)
	} else {
		b.delays = f.out(i)
	}
	return b
}

func (f *stormFleet) anyRegistrar(i int, random *rand.Rand) *station {
	return f.regions[i].registrars[random.IntN(len(f.regions[i].registrars))]
}

func (f *stormFleet) registrarDown(i int, how harm, random *rand.Rand) blow {
	s := f.anyRegistrar(i, random)
	return f.alone(i, blow{what: s.part.name, end: how.to(s.part)})
}

func (f *stormFleet) registrarCut(i int, random *rand.Rand) blow {
	s := f.anyRegistrar(i, random)
	return f.alone(i, blow{what: s.part.name, end: cutAll(s.toEtcd)})
}

// clientsOfCut leaves the clients of a region with one registrar, or none: then
// they are absent, all at once, which the brake is for.
func (f *stormFleet) clientsOfCut(i int, random *rand.Rand) blow {
	s := f.anyRegistrar(i, random)
	return blow{what: s.part.name, end: cutAll(s.clients)}
}

func (f *stormFleet) peerCut(i int) blow {
	return blow{what: "region " + f.regions[i].name, end: cutAll(f.regions[i].toPeer), cut: f.out(i)}
}

// clientsDown befalls a few clients of one region, less than the brake's share.
func (f *stormFleet) clientsDown(how harm, random *rand.Rand) blow {
	r := f.regions[random.IntN(len(f.regions))]
	var b blow
	var parts []*part
	for _, n := range random.Perm(len(r.crew))[:2] {
		h := r.crew[n]
		b.away = append(b.away, h)
		parts = append(parts, h.part)
	}
	b.what = fmt.Sprintf("%s and %s", b.away[0].name, b.away[1].name)
	b.end = how.to(parts...)
	return b
}

// clientsCut cuts a group of clients of one region off from all registrars.
func (f *stormFleet) clientsCut(random *rand.Rand) blow {
	r, group := f.regions[random.IntN(len(f.regions))], random.IntN(groups)
	var lines []*line
	for _, s := range r.registrars {
		lines = append(lines, s.clients[group])
	}
	b := blow{what: "clients of " + r.name, end: cutAll(lines)}
	for _, h := range r.crew {
		if h.group == group {
			b.away = append(b.away, h)
		}
	}
	return b
}
