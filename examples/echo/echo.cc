// Request and response between two processes: the responder sends back what the requester says.
//
//   cmake -B build && cmake --build build
//   build/echo responder &                                  # makes echo.secret
//   build/echo requester Hello from the other process
//
// Both on one machine by default, over the software RNIC. Between two hosts with RNICs, copy
// echo.secret to the second one and name the device and the responder's host:
//
//   echo responder --device mlx5_0 --address 0.0.0.0
//   echo requester --device mlx5_0 --address node-a Hello
//
// Other options, the same on both sides: --port N, --protocol send/send|send/write|write/send|...
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace {

constexpr const char* kSecretFile = "echo.secret";
constexpr int64_t kTenSecondsNs = 10'000'000'000;
constexpr uint32_t kMaxTextBytes = 4096;

struct Settings {
  std::string device = "soft0";
  std::string address = "127.0.0.1";
  uint16_t port = 7471;
  verbena::Protocol protocol = verbena::Protocol::kWriteWrite;
  std::vector<std::string> words;
};

verbena::Result<Settings> parse(std::span<char*> arguments) {
  Settings settings;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view option = arguments[i];
    if (!option.starts_with("--")) {
      settings.words.emplace_back(option);
      continue;
    }
    if (i + 1 == arguments.size()) {
      return verbena::Status(verbena::StatusCode::kInvalidArgument,
                             "no value behind " + std::string(option));
    }
    const std::string value = arguments[++i];
    if (option == "--device") {
      settings.device = value;
    } else if (option == "--address") {
      settings.address = value;
    } else if (option == "--port") {
      settings.port = static_cast<uint16_t>(std::atoi(value.c_str()));
    } else if (option == "--protocol") {
      VERBENA_ASSIGN_OR_RETURN(settings.protocol, verbena::parse_protocol(value));
    } else {
      return verbena::Status(
          verbena::StatusCode::kInvalidArgument,
          "no option " + std::string(option) + "; there are --device --address --port --protocol");
    }
  }
  if (settings.protocol == verbena::Protocol::kRead) {
    return verbena::Status(verbena::StatusCode::kInvalidArgument,
                           "with read, no handler runs that could send anything back");
  }
  return settings;
}

// Both sides know the job's secret from a file that only this user can read.
verbena::Result<verbena::JobSecret> make_secret() {
  auto secret = verbena::JobSecret::from_file(kSecretFile);
  if (secret.ok() || secret.status().code() != verbena::StatusCode::kNotFound) return secret;
  verbena::JobSecret fresh = verbena::JobSecret::random();
  VERBENA_RETURN_IF_ERROR(fresh.write_file(kSecretFile));
  return fresh;
}

// Polling as fast as possible gives the best latency; a program that also waits for long lets
// others have the CPU.
void pause_after(uint64_t empty_polls) {
  if (empty_polls > 1'000'000) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  } else if (empty_polls > 10'000) {
    std::this_thread::yield();
  }
}

verbena::Status run_responder(const Settings& settings) {
  VERBENA_ASSIGN_OR_RETURN(auto device, verbena::Device::open(settings.device));
  VERBENA_ASSIGN_OR_RETURN(auto domain, verbena::ProtectionDomain::create(device));
  verbena::ResponderOptions options;
  options.request_max_bytes = kMaxTextBytes;
  options.response_max_bytes = kMaxTextBytes;
  VERBENA_ASSIGN_OR_RETURN(auto responder,
                           verbena::make_responder(settings.protocol, verbena::MarkLayout::kLastBit,
                                                   device, domain, options));

  VERBENA_ASSIGN_OR_RETURN(auto secret, make_secret());
  VERBENA_ASSIGN_OR_RETURN(
      auto listener, verbena::ControlListener::listen(settings.address, settings.port, secret));
  std::cout << "waiting for a requester at " << listener.name() << std::endl;
  VERBENA_ASSIGN_OR_RETURN(auto control, listener.accept(-1));
  VERBENA_RETURN_IF_ERROR(responder->connect(control));

  uint64_t requests = 0;
  uint64_t empty_polls = 0;
  while (responder->status().ok()) {
    const uint32_t answered = responder->poll(
        // The request lies where the requester's device put it, the response goes from where it is
        // written: nothing is copied but by this line.
        [](const verbena::Request& request, std::span<char> response) {
          std::memcpy(response.data(), request.bytes.data(), request.bytes.size());
          return static_cast<uint32_t>(request.bytes.size());
        });
    requests += answered;
    empty_polls = answered > 0 ? 0 : empty_polls + 1;
    pause_after(empty_polls);
  }
  std::cout << "answered " << requests << " requests; " << responder->status().message() << '\n';
  return verbena::Status::ok_status();
}

verbena::Status run_requester(const Settings& settings) {
  VERBENA_ASSIGN_OR_RETURN(auto secret, verbena::JobSecret::from_file(kSecretFile));
  VERBENA_ASSIGN_OR_RETURN(auto device, verbena::Device::open(settings.device));
  VERBENA_ASSIGN_OR_RETURN(auto domain, verbena::ProtectionDomain::create(device));
  VERBENA_ASSIGN_OR_RETURN(
      auto control,
      verbena::ControlConnection::connect(settings.address, settings.port, secret, kTenSecondsNs));
  verbena::RequesterOptions options;
  options.request_max_bytes = kMaxTextBytes;
  options.response_max_bytes = kMaxTextBytes;
  VERBENA_ASSIGN_OR_RETURN(auto requester,
                           verbena::make_requester(settings.protocol, verbena::MarkLayout::kLastBit,
                                                   device, domain, control, options));

  std::string text;
  for (const std::string& word : settings.words) text += (text.empty() ? "" : " ") + word;
  text.resize(std::min<size_t>(text.size(), kMaxTextBytes));

  // Warm caches and page tables first, then take the time of many round trips.
  constexpr int kRoundTrips = 20'000;
  constexpr int kWarmUp = 1000;
  std::chrono::steady_clock::time_point start;
  std::string answer;
  for (int i = -kWarmUp; i < kRoundTrips; ++i) {
    if (i == 0) start = std::chrono::steady_clock::now();
    std::memcpy(requester->request_buffer(0), text.data(), text.size());
    requester->try_post(0, static_cast<uint32_t>(text.size()));
    const auto on_response = [&](uint32_t /*slot*/, std::span<const char> response) {
      if (i == 0) answer.assign(response.begin(), response.end());
    };
    uint64_t empty_polls = 0;
    while (requester->poll(on_response) == 0) {
      VERBENA_RETURN_IF_ERROR(requester->status());
      pause_after(++empty_polls);
    }
  }
  const std::chrono::duration<double, std::micro> elapsed_us =
      std::chrono::steady_clock::now() - start;
  std::cout << answer << '\n'
            << "round trip: " << elapsed_us.count() / kRoundTrips << " us, mean of " << kRoundTrips
            << ", " << verbena::protocol_name(settings.protocol) << " on " << settings.device
            << '\n';
  return verbena::Status::ok_status();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view role = argc > 1 ? argv[1] : "";
  if (role != "responder" && role != "requester") {
    std::cerr << "usage: echo responder [options] | echo requester [options] TEXT...\n";
    return 2;
  }
  const auto settings = parse(std::span(argv + 2, static_cast<size_t>(argc - 2)));
  if (!settings.ok()) {
    std::cerr << "echo: " << settings.status().message() << '\n';
    return 2;
  }
  const verbena::Status status =
      role == "responder" ? run_responder(*settings) : run_requester(*settings);
  if (!status.ok()) std::cerr << "echo: " << status.message() << '\n';
  return status.ok() ? 0 : 1;
}
