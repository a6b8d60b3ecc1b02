#include <fmt/format.h>
#include <hiredis/hiredis.h>

#include <memory>
#include <string>
#include <string_view>

#include "src/bench/baselines/contenders/contenders.h"
#include "src/bench/baselines/contenders/key_value_server.h"

namespace verbena::bench::baselines {

namespace {

struct FreeContext {
  void operator()(redisContext* context) const { redisFree(context); }
};
struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};

class RedisClient {
 public:
  Status connect(const std::string& path) {
    context_.reset(redisConnectUnix(path.c_str()));
    return context_ != nullptr && context_->err == 0 ? Status::ok_status() : failed("connect");
  }
  Status set(const KeyValueLoad::Entry& entry) {
    const char* arguments[] = {"SET", entry.key.data(), entry.value.data()};
    const size_t sizes[] = {3, entry.key.size(), entry.value.size()};
    return append(3, arguments, sizes);
  }
  Status get(const KeyValueLoad::Entry& entry) {
    const char* arguments[] = {"GET", entry.key.data()};
    const size_t sizes[] = {3, entry.key.size()};
    return append(2, arguments, sizes);
  }
  // The next answer: "OK", or a value of `value_bytes`.
  Status take(size_t value_bytes) {
    void* answer = nullptr;
    if (redisGetReply(context_.get(), &answer) != REDIS_OK) return failed("read an answer");
    const std::unique_ptr<redisReply, FreeReply> reply(static_cast<redisReply*>(answer));
    const bool right = value_bytes == 0
                           ? reply->type == REDIS_REPLY_STATUS
                           : reply->type == REDIS_REPLY_STRING && reply->len == value_bytes;
    return right ? Status::ok_status()
                 : Status(StatusCode::kProtocolViolation, "Redis: an unexpected answer");
  }

 private:
  Status append(int count, const char** arguments, const size_t* sizes) {
    return redisAppendCommandArgv(context_.get(), count, arguments, sizes) == REDIS_OK
               ? Status::ok_status()
               : failed("write a command");
  }
  Status failed(const char* what) const {
    return {StatusCode::kUnavailable,
            fmt::format("Redis: cannot {}: {}", what,
                        context_ != nullptr ? context_->errstr : "no memory")};
  }

  std::unique_ptr<redisContext, FreeContext> context_;
};

// As many commands at once as are pending: Redis' pipelining.
Status use(RedisClient& client, KeyValueLoad& load, const KeyValuePlan& plan, uint64_t operations) {
  for (uint64_t done = 0; done < operations; done += plan.pending) {
    for (uint32_t i = 0; i < plan.pending; ++i) {
      const KeyValueLoad::Entry entry = load.next();
      VERBENA_RETURN_IF_ERROR(plan.updates ? client.set(entry) : client.get(entry));
    }
    for (uint32_t i = 0; i < plan.pending; ++i) {
      VERBENA_RETURN_IF_ERROR(client.take(plan.updates ? 0 : KeyValuePlan::kValueBytes));
    }
  }
  return Status::ok_status();
}

Status fill(RedisClient& client) {
  constexpr uint64_t kAtOnce = 100;
  KeyValueLoad load;
  for (uint64_t number = 0; number < KeyValuePlan::kKeys; number += kAtOnce) {
    for (uint64_t i = 0; i < kAtOnce; ++i) {
      VERBENA_RETURN_IF_ERROR(client.set(load.entry(number + i)));
    }
    for (uint64_t i = 0; i < kAtOnce; ++i) VERBENA_RETURN_IF_ERROR(client.take(0));
  }
  return Status::ok_status();
}

}  // namespace

Result<double> redis_rate(const CpuPair& cpus, const KeyValuePlan& plan) {
  return with_key_value_server(
      cpus,
      [](const std::string& path) {
        return std::vector<std::string>{"redis-server", "--port",      "0", "--unixsocket",
                                        path,           "--save",      "",  "--appendonly",
                                        "no",           "--daemonize", "no"};
      },
      [&plan](Side& side, const std::string& path) -> Status {
        RedisClient client;
        VERBENA_RETURN_IF_ERROR(client.connect(path));
        VERBENA_RETURN_IF_ERROR(fill(client));
        KeyValueLoad load;
        VERBENA_RETURN_IF_ERROR(use(client, load, plan, plan.operations / 10));  // to warm up
        const uint64_t begun_ns = now_ns();
        VERBENA_RETURN_IF_ERROR(use(client, load, plan, plan.operations));
        const auto rounds = (plan.operations + plan.pending - 1) / plan.pending;
        side.set_result(static_cast<double>(rounds * plan.pending) /
                        static_cast<double>(now_ns() - begun_ns) * 1e9);
        return Status::ok_status();
      });
}

}  // namespace verbena::bench::baselines
