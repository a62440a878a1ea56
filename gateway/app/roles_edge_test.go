package app_test

var usesOfEdge = map[string]use{
	"GET " + edgeStatus: {who: admin},
}
