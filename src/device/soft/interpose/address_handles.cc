// Address handles of unreliable datagrams.
#include "src/device/soft/interpose/installed.h"

using namespace verbena::soft;             // NOLINT: definitions below are global
using namespace verbena::soft::interpose;  // NOLINT

VERBENA_EXPORT ibv_ah* ibv_create_ah(ibv_pd* domain, ibv_ah_attr* attributes) {
  if (owns(domain)) {
    return reported(datagrams().create_ah(domain, attributes), "ibv_create_ah");
  }
  return VERBENA_INSTALLED(ibv_create_ah, "IBVERBS_1.1")(domain, attributes);
}

VERBENA_EXPORT int ibv_init_ah_from_wc(ibv_context* context, uint8_t port, ibv_wc* completion,
                                       ibv_grh* grh, ibv_ah_attr* attributes) {
  if (owns(context)) {
    const int error =
        datagrams().init_ah_from_wc(checked(context), port, completion, grh, attributes);
    return reported(error, "ibv_init_ah_from_wc");
  }
  return VERBENA_INSTALLED(ibv_init_ah_from_wc, "IBVERBS_1.1")(context, port, completion, grh,
                                                               attributes);
}

VERBENA_EXPORT ibv_ah* ibv_create_ah_from_wc(ibv_pd* domain, ibv_wc* completion, ibv_grh* grh,
                                             uint8_t port) {
  if (owns(domain)) {
    ibv_ah_attr attributes;
    ibv_context* context = domain != nullptr ? domain->context : nullptr;
    if (datagrams().init_ah_from_wc(checked(context), port, completion, grh, &attributes) != 0) {
      rnic().report_refusal("ibv_create_ah_from_wc");
      return nullptr;
    }
    return reported(datagrams().create_ah(domain, &attributes), "ibv_create_ah_from_wc");
  }
  return VERBENA_INSTALLED(ibv_create_ah_from_wc, "IBVERBS_1.1")(domain, completion, grh, port);
}

VERBENA_EXPORT int ibv_destroy_ah(ibv_ah* handle) {
  if (owns(handle)) return reported(datagrams().destroy_ah(handle), "ibv_destroy_ah");
  return VERBENA_INSTALLED(ibv_destroy_ah, "IBVERBS_1.1")(handle);
}

VERBENA_EXPORT int ibv_resolve_eth_l2_from_gid(ibv_context* context, ibv_ah_attr* attributes,
                                               uint8_t mac[ETHERNET_LL_SIZE], uint16_t* vid) {
  if (owns(context)) return not_supported();
  return VERBENA_INSTALLED(ibv_resolve_eth_l2_from_gid, "IBVERBS_1.1")(context, attributes, mac,
                                                                       vid);
}
