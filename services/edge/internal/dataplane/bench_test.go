package dataplane

import (
	"fmt"
	"testing"

	"github.com/kubebyon/kubebyon/services/edge/internal/edge"
)

func manyRoutes(n int, target *behind) []edge.Route {
	routes := make([]edge.Route, n)
	for i := range routes {
		routes[i] = routeTo(fmt.Sprintf("r%05d", i), fmt.Sprintf("r%05d.example.com", i), target.AddrPort)
	}
	return routes
}

// BenchmarkFirstSync is from an empty plane to a HAProxy that runs with all routes.
func BenchmarkFirstSync(b *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			routes := manyRoutes(n, serve(b, "a", false))
			for b.Loop() {
				b.StopTimer()
				p := embedded(b)
				c := p.client(b, func(o *Options) { o.Settings.MapAbove = 2000 })
				b.StartTimer()
				apply(b, c, true, true, routes...)
			}
		})
	}
}

// BenchmarkAddOne is from one route more to a HAProxy that runs with it: by typed calls up to 2,000 routes, by a map above.
func BenchmarkAddOne(b *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			a := serve(b, "a", false)
			p := embedded(b)
			c := p.client(b, func(o *Options) { o.Settings.MapAbove = 2000 })
			routes := manyRoutes(n, a)
			apply(b, c, true, true, routes...)
			i := 0
			for b.Loop() {
				routes = append(routes, routeTo(fmt.Sprintf("more%05d", i), fmt.Sprintf("more%05d.example.com", i), a.AddrPort))
				i++
				apply(b, c, true, true, routes...)
			}
		})
	}
}

// BenchmarkNothingToDo is what the timer costs.
func BenchmarkNothingToDo(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := embedded(b)
			c := p.client(b, func(o *Options) { o.Settings.MapAbove = 2000 })
			routes := manyRoutes(n, serve(b, "a", false))
			apply(b, c, true, true, routes...)
			for b.Loop() {
				apply(b, c, false, false, routes...)
			}
		})
	}
}
