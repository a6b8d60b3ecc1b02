// A key-value store as a service: typed calls, values of any size, asynchronous calls, and a design
// point that is compiled in.
//
//   cmake -B build && cmake --build build
//   build/store                                     # write/write, last-bit
//   build/store send/write                          # or another protocol
//
// The server is a thread here, so that one command shows it all. examples/echo has two processes
// and two hosts; nothing in serve() or use() would change.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "verbena/design.h"

namespace {

using verbena::CallOutcome;
using verbena::CallResult;
using verbena::Status;

enum CallType : uint16_t { kPut = 1, kGet = 2 };  // key (8 bytes), value -> -; key -> value

constexpr uint32_t kLargestValueBytes = 4 << 20;

// What both sides agree on. Most values fit a slot; larger ones travel in parts.
constexpr verbena::ServerOptions kServer = {.request_slot_bytes = 512,
                                            .response_slot_bytes = 16 * 1024,
                                            .pending = 16,
                                            .max_connections = 1,
                                            .request_max_bytes = 8 + kLargestValueBytes,
                                            .response_max_bytes = kLargestValueBytes};
constexpr verbena::ClientOptions kClient = {.request_slot_bytes = kServer.request_slot_bytes,
                                            .response_slot_bytes = kServer.response_slot_bytes,
                                            .pending = kServer.pending,
                                            .response_max_bytes = kServer.response_max_bytes};

template <typename Design>
Status serve(verbena::ControlListener& listener) {
  VERBENA_ASSIGN_OR_RETURN(auto device, verbena::Device::open("soft0"));
  VERBENA_ASSIGN_OR_RETURN(auto domain, verbena::ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(auto server, verbena::create_server<Design>(device, domain, kServer));

  std::unordered_map<uint64_t, std::vector<char>> values;
  const auto key_of = [](std::span<const char> request) {
    uint64_t key = 0;
    std::memcpy(&key, request.data(), sizeof(key));
    return key;
  };
  server->handle(kPut, [&](const verbena::Call& call, verbena::Reply&) {
    if (call.request.size() < 8) return CallResult::kFailed;
    const std::span<const char> value = call.request.subspan(8);
    values[key_of(call.request)].assign(value.begin(), value.end());
    return CallResult::kOk;
  });
  server->handle(kGet, [&](const verbena::Call& call, verbena::Reply& reply) {
    if (call.request.size() != 8) return CallResult::kFailed;
    const auto found = values.find(key_of(call.request));
    if (found == values.end()) return CallResult::kFailed;
    // Where the response will be sent from, if it fits a slot: the value is copied once.
    const std::span<char> to = reply.buffer(found->second.size());
    if (to.size() != found->second.size()) return CallResult::kTooLarge;
    std::memcpy(to.data(), found->second.data(), to.size());
    return CallResult::kOk;
  });

  VERBENA_ASSIGN_OR_RETURN(auto control, listener.accept(10'000'000'000));
  VERBENA_RETURN_IF_ERROR(server->connect(control));
  while (server->connections() > 0) {
    if (server->poll() == 0) std::this_thread::yield();
  }
  return Status::ok_status();
}

template <typename Client>
Status put(Client& client, uint64_t key, std::span<const char> value) {
  std::vector<char> request(8 + value.size());
  std::memcpy(request.data(), &key, sizeof(key));
  std::memcpy(request.data() + 8, value.data(), value.size());
  auto future = client.call_future_with(kPut, request);
  future->wait();
  if (future->outcome().result == CallResult::kOk) return Status::ok_status();
  return client.status().ok() ? Status(verbena::StatusCode::kUnavailable, "the server refused")
                              : client.status();
}

template <typename Design>
Status use(verbena::ControlConnection& control) {
  VERBENA_ASSIGN_OR_RETURN(auto device, verbena::Device::open("soft0"));
  VERBENA_ASSIGN_OR_RETURN(auto domain, verbena::ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(auto client,
                           verbena::connect_client<Design>(device, domain, control, kClient));

  VERBENA_RETURN_IF_ERROR(put(*client, 1, std::string(64, 'x')));
  VERBENA_RETURN_IF_ERROR(put(*client, 2, std::string(kLargestValueBytes, 'y')));

  // One call at a time, with a future.
  const uint64_t large_key = 2;
  auto large = client->call_future_with(
      kGet, {reinterpret_cast<const char*>(&large_key), sizeof(large_key)});
  large->wait();
  std::cout << "a value of " << large->outcome().response.size()
            << " bytes: " << verbena::call_result_name(large->outcome().result) << '\n';

  // As many at once as there are slots, with callbacks, written in place.
  constexpr uint32_t kCalls = 300'000;
  uint32_t begun = 0;
  uint32_t right = 0;
  const auto start = std::chrono::steady_clock::now();
  while (begun < kCalls || client->outstanding() > 0) {
    while (begun < kCalls) {
      const auto slot = client->acquire();
      if (!slot) break;  // all are waiting: take responses first
      const uint64_t key = 1;
      std::memcpy(slot->buffer.data(), &key, sizeof(key));
      client->call(*slot, kGet, sizeof(key), [&right](const CallOutcome& outcome) {
        right += outcome.result == CallResult::kOk && outcome.response.size() == 64 ? 1 : 0;
      });
      ++begun;
    }
    if (client->poll() == 0) std::this_thread::yield();
  }
  const std::chrono::duration<double> elapsed_s = std::chrono::steady_clock::now() - start;
  std::cout << right << " of " << kCalls << " values of 64 bytes, "
            << static_cast<uint64_t>(kCalls / elapsed_s.count()) << " per second, "
            << verbena::protocol_name(Design::kProtocol) << '\n';
  VERBENA_RETURN_IF_ERROR(client->status());
  client->shut_down(1'000'000'000);
  return Status::ok_status();
}

Status run(std::string_view protocol_text) {
  VERBENA_ASSIGN_OR_RETURN(const verbena::Protocol protocol,
                           verbena::parse_protocol(protocol_text));
  if (protocol == verbena::Protocol::kRead) {
    return Status(verbena::StatusCode::kInvalidArgument, "with read, no handler runs");
  }
  const auto secret = verbena::JobSecret::random();
  VERBENA_ASSIGN_OR_RETURN(auto listener, verbena::ControlListener::listen("127.0.0.1", 0, secret));
  return verbena::with_design_point(
      protocol, verbena::MarkLayout::kLastBit, [&]<typename Design>() {
        if constexpr (Design::kProtocol == verbena::Protocol::kRead) {
          return Status::ok_status();
        } else {
          Status served;
          std::thread server([&] { served = serve<Design>(listener); });
          auto control = verbena::ControlConnection::connect("127.0.0.1", listener.port(), secret,
                                                             10'000'000'000);
          Status used = control.ok() ? use<Design>(*control) : control.status();
          control = Status(verbena::StatusCode::kUnavailable, "closed");  // the server then ends
          server.join();
          return used.ok() ? served : used;
        }
      });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2) {
    std::cerr << "usage: store [PROTOCOL]\n";
    return 2;
  }
  const Status status = run(argc > 1 ? argv[1] : "write/write");
  if (!status.ok()) std::cerr << "store: " << status.message() << '\n';
  return status.ok() ? 0 : 1;
}
