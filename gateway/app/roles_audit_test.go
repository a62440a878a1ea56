package app_test

var usesOfAudit = map[string]use{
	"GET " + auditLog: {who: admin}, "GET " + auditLog + "/export": {who: admin},
}
