package app_test

var usesOfMembers = map[string]use{
	"GET " + members:                   {who: account, fill: clusterID},
	"PUT " + members:                   {who: account, fill: clusterID, body: `{"email":"nobody@example.com","access":"viewer"}`},
	"DELETE " + members + "/{user_id}": {who: account, fill: clusterID + " usr_nobodynobodynobodyno"},
}
