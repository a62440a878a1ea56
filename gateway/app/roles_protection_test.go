package app_test

const (
	secondFactor     = "/api/auth/second-factor"
	takeSecondFactor = "/api/admin/users/{user_id}/second-factor"
)

var usesOfProtection = map[string]use{
	"POST /api/auth/captcha":                   {},
	"POST " + secondFactor:                     {who: account, inPerson: true, body: `{"password":""}`}, // 400: a wrong one would count
	"DELETE " + secondFactor:                   {who: account, inPerson: true, body: `{"password":"","code":""}`},
	"POST " + secondFactor + "/confirm":        {who: account, inPerson: true, body: `{"code":"000000"}`}, // 409: none was begun
	"POST " + secondFactor + "/recovery-codes": {who: account, inPerson: true, body: `{"password":"","code":""}`},
	"DELETE " + takeSecondFactor:               {who: admin, inPerson: true, fill: "usr_zzzzzzzzzzzzzzzzzzzz"}, // 404
}
