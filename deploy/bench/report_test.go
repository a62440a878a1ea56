package main

import (
	"strings"
	"testing"
)

func TestSamples(t *testing.T) {
	for _, c := range []struct {
		s    samples
		want string
	}{
		{samples{6.5}, "6.50 s (n=1)"},
		{samples{3, 1, 2}, "2.00 s (1.00-3.00, n=3)"},
		{samples{10, 20, 200, 1000}, "110 s (10.0-1000, n=4)"},
		{nil, "nothing"},
	} {
		if got := c.s.text("s"); got != c.want {
			t.Errorf("%v: %q, want %q", c.s, got, c.want)
		}
	}
}

func TestMarkdown(t *testing.T) {
	r := report{facts: [][2]string{{"processors", "2 x A|B"}}}
	r.add(against("POST to ready", samples{6, 7, 5}, samples{5, 5, 5}, 1.3, "s", "three\n  of each"))
	r.add(against("slow", samples{9}, samples{3}, 2, "ms", "once"))
	r.add(atMost("memory", samples{200, 201}, 270, "MiB", "summary"))
	r.add(allWithin("five", samples{15, 21}, 20, "s", "at once"))
	r.comment("a %s", "remark")
	got := r.markdown()
	for _, want := range []string{
		"2 of 4 goals met.",
		"| POST to ready | ≤ 1.3 x | **1.20 x**: 6.00 s (5.00-7.00, n=3) against 5.00 s (5.00-5.00, n=3) | met | three of each |\n",
		"| slow | ≤ 2 x | **3.00 x**: 9.00 ms (n=1) against 3.00 ms (n=1) | **missed** | once |\n",
		"| memory | ≤ 270 MiB | 200 MiB (200-201, n=2) | met | summary |\n",
		"| five | ≤ 20 s | 18.0 s (15.0-21.0, n=2) | **missed** | at once |\n",
		"- a remark\n",
		`| processors | 2 x A\|B |`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("it lacks %q:\n%s", want, got)
		}
	}
	for _, l := range strings.Split(got, "\n") {
		if strings.HasPrefix(l, "| POST") && strings.Count(l, " | ") != 4 {
			t.Errorf("%d cells: %s", strings.Count(l, " | "), l)
		}
	}
}

func TestQuantile(t *testing.T) {
	var s samples
	for i := range 100 {
		s = append(s, float64(100-i))
	}
	for q, want := range map[float64]float64{0: 1, 0.5: 51, 0.99: 100, 1: 100} {
		if got := s.quantile(q); got != want {
			t.Errorf("%v: %v, want %v", q, got, want)
		}
	}
	if got := samples(nil).quantile(0.99); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}
