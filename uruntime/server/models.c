// SPDX-License-Identifier: MIT
/* GET /v1/models, GET /v1/models/NAME and GET /health. */
#include "server/http.h"

#include <string.h>

static json_t *model_json(const struct ctn_model_info *info)
{
	return json_pack("{s:s, s:s, s:I, s:s}", "id", info->name, "object", "model", "created",
			 (json_int_t)info->created, "owned_by", "computron");
}

enum MHD_Result ctn_handle_models(struct ctn_exchange *x)
{
	uint32_t count = ctn_engine_model_count(x->server->engine);
	json_t *list = json_array();
	struct ctn_model_info info;

	/* Those that cannot be served stand in /status, with the reason. */
	for (uint32_t i = 0; i < count; i++) {
		ctn_engine_model(x->server->engine, i, &info);
		if (!info.reason && json_array_append_new(list, model_json(&info))) {
			json_decref(list);
			return MHD_NO;
		}
	}
	return ctn_reply_json(x, MHD_HTTP_OK,
			      json_pack("{s:s, s:o}", "object", "list", "data", list));
}

enum MHD_Result ctn_handle_model(struct ctn_exchange *x)
{
	const char *name = x->path + strlen("/v1/models/");
	int model = ctn_engine_find_model(x->server->engine, name);
	struct ctn_api_error e = {0};
	struct ctn_model_info info;

	if (model < 0) {
		ctn_api_fail(&e, MHD_HTTP_NOT_FOUND, "model_not_found", "model",
			     "there is no model \"%.200s\"", name);
		return ctn_reply_error(x, &e);
	}
	ctn_engine_model(x->server->engine, (uint32_t)model, &info);
	if (info.reason) {
		ctn_api_fail(&e, MHD_HTTP_SERVICE_UNAVAILABLE, "model_not_servable", "model",
			     "model %s cannot be served: %s", name, info.reason);
		return ctn_reply_error(x, &e);
	}
	return ctn_reply_json(x, MHD_HTTP_OK, model_json(&info));
}

enum MHD_Result ctn_handle_health(struct ctn_exchange *x)
{
	bool refusing = atomic_load(&x->server->refusing);

	return ctn_reply_json(x, refusing ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK,
			      json_pack("{s:s}", "status", refusing ? "stopping" : "ok"));
}
