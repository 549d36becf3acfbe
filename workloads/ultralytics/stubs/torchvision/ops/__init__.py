"""`nms` by ultralytics' own torch implementation."""


def nms(boxes, scores, iou_threshold):
    from ultralytics.utils.nms import TorchNMS

    return TorchNMS.nms(boxes, scores, iou_threshold)
