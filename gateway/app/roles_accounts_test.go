package app_test

const (
	invitations = "/api/admin/invitations"
	users       = "/api/admin/users"
	nobodysID   = "usr_zzzzzzzzzzzzzzzzzzzz"
)

var usesOfAccounts = map[string]use{
	"GET /register": {}, "GET /reset": {},
	"POST /api/auth/code":            {body: `{"email":"x@example.com","purpose":"register","captcha_id":"cap_x","captcha_answer":"1"}`}, // 400 for anybody
	"POST /api/auth/register":        {body: `{"invitation":"x","password":"twelve chars"}`},                                             // 403 for anybody
	"POST /api/auth/reset-password":  {body: `{"email":"x@example.com","code":"AAAAA-AAAAA","password":"twelve chars"}`},                 // 400 for anybody
	"POST /api/auth/change-password": {who: account, inPerson: true, body: `{"current_password":"","new_password":"twelve chars"}`},      // 400: a wrong one would count

	"POST " + invitations: {who: admin, inPerson: true, body: `{"email":"invited@example.com","role":"user"}`}, "GET " + invitations: {who: admin},
	"DELETE " + invitations + "/{invitation_id}": {who: admin, inPerson: true, fill: "inv_zzzzzzzzzzzzzzzzzzzz"},
	"GET " + users:                   {who: admin},
	"GET " + users + "/{user_id}":    {who: admin, fill: nobodysID},
	"PATCH " + users + "/{user_id}":  {who: admin, inPerson: true, fill: nobodysID, body: `{"disabled":true}`},
	"DELETE " + users + "/{user_id}": {who: admin, inPerson: true, fill: nobodysID},
}
