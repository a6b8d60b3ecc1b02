#include <fmt/format.h>
#include <libmemcached/memcached.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "src/bench/baselines/contenders/contenders.h"
#include "src/bench/baselines/contenders/key_value_server.h"

namespace verbena::bench::baselines {

namespace {

struct FreeClient {
  void operator()(memcached_st* client) const { memcached_free(client); }
};
using Client = std::unique_ptr<memcached_st, FreeClient>;

Status check(const Client& client, memcached_return_t code) {
  if (code == MEMCACHED_SUCCESS) return Status::ok_status();
  return {StatusCode::kUnavailable,
          fmt::format("memcached: {}", memcached_strerror(client.get(), code))};
}

Status set(const Client& client, const KeyValueLoad::Entry& entry) {
  return check(client, memcached_set(client.get(), entry.key.data(), entry.key.size(),
                                     entry.value.data(), entry.value.size(), 0, 0));
}

Status get(const Client& client, const KeyValueLoad::Entry& entry) {
  size_t size = 0;
  uint32_t flags = 0;
  memcached_return_t code = MEMCACHED_SUCCESS;
  char* const value =
      memcached_get(client.get(), entry.key.data(), entry.key.size(), &size, &flags, &code);
  std::free(value);  // NOLINT(cppcoreguidelines-no-malloc): made by the library's malloc()
  VERBENA_RETURN_IF_ERROR(check(client, code));
  return size == KeyValuePlan::kValueBytes
             ? Status::ok_status()
             : Status(StatusCode::kProtocolViolation, "memcached: a value of another size");
}

Status use(const Client& client, KeyValueLoad& load, const KeyValuePlan& plan,
           uint64_t operations) {
  for (uint64_t i = 0; i < operations; ++i) {
    VERBENA_RETURN_IF_ERROR(plan.updates ? set(client, load.next()) : get(client, load.next()));
  }
  return Status::ok_status();
}

}  // namespace

Result<double> memcached_rate(const CpuPair& cpus, const KeyValuePlan& plan) {
  return with_key_value_server(
      cpus,
      [](const std::string& path) {
        // One thread, as it has one client; -u is what root has to say.
        return std::vector<std::string>{"memcached", "-s", path, "-t", "1", "-u", "root"};
      },
      [&plan](Side& side, const std::string& path) -> Status {
        const Client client(memcached_create(nullptr));
        VERBENA_RETURN_IF_ERROR(
            check(client, memcached_server_add_unix_socket(client.get(), path.c_str())));
        KeyValueLoad load;
        for (uint64_t number = 0; number < KeyValuePlan::kKeys; ++number) {
          VERBENA_RETURN_IF_ERROR(set(client, load.entry(number)));
        }
        VERBENA_RETURN_IF_ERROR(use(client, load, plan, plan.operations / 10));  // to warm up
        const uint64_t begun_ns = now_ns();
        VERBENA_RETURN_IF_ERROR(use(client, load, plan, plan.operations));
        side.set_result(static_cast<double>(plan.operations) /
                        static_cast<double>(now_ns() - begun_ns) * 1e9);
        return Status::ok_status();
      });
}

}  // namespace verbena::bench::baselines
