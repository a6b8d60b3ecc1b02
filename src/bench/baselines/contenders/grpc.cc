#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/bench/baselines/contenders/contenders.h"

namespace verbena::bench::baselines {

namespace {

constexpr const char* kMethod = "/verbena.Echo/Echo";

// One call at the server: waits for its turn, reads, answers, and begins anew.
class ServerCall {
 public:
  ServerCall(grpc::AsyncGenericService& service, grpc::ServerCompletionQueue& queue)
      : service_(service), queue_(queue) {
    wait();
  }

  // Takes the next step; true when a call was answered.
  bool proceed(bool ok) {
    switch (step_) {
      case Step::kCalled:
        if (!ok) return false;  // the server shuts down
        step_ = Step::kRead;
        stream_->Read(&message_, this);
        return false;
      case Step::kRead:
        step_ = Step::kAnswered;
        if (ok) {
          stream_->WriteAndFinish(message_, grpc::WriteOptions(), grpc::Status::OK, this);
        } else {
          stream_->Finish(grpc::Status::CANCELLED, this);
        }
        return false;
      case Step::kAnswered:
        wait();
        return ok;
    }
    return false;
  }

 private:
  enum class Step { kCalled, kRead, kAnswered };

  void wait() {
    step_ = Step::kCalled;
    stream_.reset();
    context_ = std::make_unique<grpc::GenericServerContext>();
    stream_ = std::make_unique<grpc::GenericServerAsyncReaderWriter>(context_.get());
    service_.RequestCall(context_.get(), stream_.get(), &queue_, &queue_, this);
  }

  grpc::AsyncGenericService& service_;
  grpc::ServerCompletionQueue& queue_;
  Step step_ = Step::kCalled;
  std::unique_ptr<grpc::GenericServerContext> context_;
  std::unique_ptr<grpc::GenericServerAsyncReaderWriter> stream_;
  grpc::ByteBuffer message_;
};

Status serve(Side& side, const EchoPlan& plan, const std::string& address) {
  grpc::AsyncGenericService service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterAsyncGenericService(&service);
  const std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return Status(StatusCode::kUnavailable, "gRPC: cannot listen");
  std::vector<std::unique_ptr<ServerCall>> calls;
  for (uint32_t i = 0; i < plan.pending; ++i) {
    calls.push_back(std::make_unique<ServerCall>(service, *queue));
  }
  VERBENA_RETURN_IF_ERROR(side.meet());
  uint64_t answered = 0;
  void* tag = nullptr;
  bool ok = false;
  while (answered < plan.all()) {
    if (!queue->Next(&tag, &ok)) return echo_failed();
    answered += static_cast<ServerCall*>(tag)->proceed(ok) ? 1 : 0;
  }
  const Status met = side.meet();
  server->Shutdown();
  queue->Shutdown();
  while (queue->Next(&tag, &ok)) {
  }
  return met;
}

// What one request at the client needs until its response is there.
struct ClientCall {
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  grpc::ByteBuffer response;
  grpc::Status status;
};

Status request(Side& side, const EchoPlan& plan, const std::string& address) {
  VERBENA_RETURN_IF_ERROR(side.meet());
  grpc::GenericStub stub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::CompletionQueue queue;
  const std::string bytes(plan.bytes, 'g');
  std::vector<ClientCall> calls(plan.pending);
  std::vector<ClientCall*> idle;
  for (ClientCall& call : calls) idle.push_back(&call);
  VERBENA_RETURN_IF_ERROR(request_echoes(
      side, plan,
      [&] {
        ClientCall& call = *idle.back();
        idle.pop_back();
        const grpc::Slice slice(bytes);
        const grpc::ByteBuffer message(&slice, 1);
        call.reader.reset();
        call.context = std::make_unique<grpc::ClientContext>();
        call.reader = stub.PrepareUnaryCall(call.context.get(), kMethod, message, &queue);
        call.reader->StartCall();
        call.reader->Finish(&call.response, &call.status, &call);
        return true;
      },
      [&]() -> int64_t {
        void* tag = nullptr;
        bool ok = false;
        if (!queue.Next(&tag, &ok) || !ok) return -1;
        auto* call = static_cast<ClientCall*>(tag);
        idle.push_back(call);
        return call->status.ok() && call->response.Length() == plan.bytes ? 1 : -1;
      }));
  return side.meet();
}

}  // namespace

Result<double> grpc_echo(const CpuPair& cpus, const EchoPlan& plan) {
  const std::string address = "unix-abstract:" + socket_name();
  return run_pair(cpus, [&](Side& side) {
    return side.number() == 0 ? request(side, plan, address) : serve(side, plan, address);
  });
}

}  // namespace verbena::bench::baselines
